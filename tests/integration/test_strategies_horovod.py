"""Horovod against training in one process, where `make horovod` has installed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalestudy.strategies.build import missing_build
from scalestudy.strategies.catalogue import Horovod
from tests.integration.forked import on_processes
from tests.integration.trainings import MODELS, RANKS, Case, difference, reference, train_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

UNFUSED_RANKS = 3


def cases_of(ranks: int) -> dict[str, Case]:
    """Horovod starts once in a process, so that each number of ranks has one setting of fusion and cycle."""
    started = {"fusion_mib": 0.0, "cycle_ms": 3.0} if ranks == UNFUSED_RANKS else {}
    plain, fp16 = (Horovod(name="horovod", compression=c, **started) for c in ("none", "fp16"))  # type: ignore[arg-type]
    return {
        **{model: Case(model, plain) for model in MODELS},
        "fp16": Case("mlp", fp16),
    }


def train_without_end(index: int, ranks: int, folder: Path, cases: dict[str, Case]) -> dict[str, Any]:
    """All cases in one process: Horovod ends with it."""
    from scalestudy.strategies.horovod import Horovod as Strategy

    Strategy.finish = lambda self: None  # type: ignore[method-assign]
    return train_all(index, ranks, folder, cases)


@pytest.fixture(scope="session")
def horovod() -> None:
    """Skip the tests of this file, with the reason, where Horovod is not installed."""
    if reason := missing_build(Horovod(name="horovod")):
        pytest.skip(reason)


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def trained(horovod: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Any]:
    """The number of ranks, and the result of every case by name and rank."""
    ranks: int = request.param
    folder = tmp_path_factory.mktemp(f"horovod{ranks}")
    return ranks, on_processes(ranks, folder, train_without_end, ranks, folder, cases_of(ranks))


@pytest.mark.parametrize("model", MODELS)
def test_horovod_gives_the_weights_of_one_process(trained: Any, model: str) -> None:
    ranks, results = trained
    for rank in range(ranks):
        assert difference(results[rank][model], reference(model, ranks)) < 1e-12


def test_horovod_in_fp16_rounds_a_little_and_not_nothing(trained: Any) -> None:
    ranks, results = trained
    rounded = difference(results[0]["fp16"], reference("mlp", ranks))
    assert 1e-7 < rounded < 1e-3 if ranks > 1 else rounded < 1e-12


def test_all_ranks_of_horovod_end_with_the_same_bits(trained: Any) -> None:
    ranks, results = trained
    for case in cases_of(ranks):
        for rank in range(ranks):
            assert difference(results[rank][case], results[0][case]) == 0.0
