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

RANKS = 3
CASES = {model: Case(model, Horovod(name="horovod")) for model in MODELS}


def train_without_end(index: int, folder: Path) -> dict[str, Any]:
    """All cases in one process: Horovod ends with it."""
    from scalestudy.strategies.horovod import Horovod as Strategy

    Strategy.finish = lambda self: None  # type: ignore[method-assign]
    return train_all(index, RANKS, folder, CASES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Of every rank the result of every case by name; skipped, with the reason, without Horovod."""
    if reason := missing_build(Horovod(name="horovod")):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("horovod")
    return on_processes(RANKS, folder, train_without_end, folder)


@pytest.mark.parametrize("model", MODELS)
def test_horovod_gives_the_weights_of_one_process(trained: list[Any], model: str) -> None:
    for results in trained:
        assert difference(results[model], reference(model, RANKS)) < 1e-12
