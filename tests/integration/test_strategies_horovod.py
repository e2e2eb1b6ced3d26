"""Horovod against training in one process, where `make horovod` has installed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalestudy.strategies.build import missing_build
from scalestudy.strategies.catalogue import Horovod
from tests.integration.forked import on_processes
from tests.integration.trainings import MODELS, Case, difference, reference, train_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("one_thread")]

RANKS = (2, 3)
CASES = {model: Case(model, Horovod(name="horovod")) for model in MODELS}


def train_without_end(index: int, ranks: int, folder: Path, cases: dict[str, Case]) -> dict[str, Any]:
    """All cases in one process: Horovod ends with it."""
    from scalestudy.strategies.horovod import Horovod as Strategy

    Strategy.finish = lambda self: None  # type: ignore[method-assign]
    return train_all(index, ranks, folder, cases)


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Any]:
    """The number of ranks, and the result of every case by name and rank; skipped, with the reason, without Horovod."""
    if reason := missing_build(Horovod(name="horovod")):
        pytest.skip(reason)
    ranks: int = request.param
    folder = tmp_path_factory.mktemp(f"horovod{ranks}")
    return ranks, on_processes(ranks, folder, train_without_end, ranks, folder, CASES)


@pytest.mark.parametrize("model", MODELS)
def test_horovod_gives_the_weights_of_one_process(trained: Any, model: str) -> None:
    ranks, results = trained
    for rank in range(ranks):
        assert difference(results[rank][model], reference(model, ranks)) < 1e-12
