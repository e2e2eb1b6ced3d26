from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.data.load.loader import Loader
from scalestudy.data.load.sampler import batches
from scalestudy.errors import UserError
from scalestudy.spec import run
from tests.unit.data.conftest import Prepared

JPEG = {"source": "synthetic_jpeg", "samples": 48, "width": 96, "height": 64, "mean_kib": 3.0}


def plan(samples: int, batch: int, epochs: int = 1) -> Iterator[tuple[int, np.ndarray]]:
    for epoch in range(epochs):
        for indices in batches(samples, batch, 0, 1, 0, epoch):
            yield epoch, indices


def spec(workers: int, prefetch: int = 2, augment: str = "crop_flip", size: int | None = 32) -> run.Loader:
    return run.Loader.model_validate({"workers": workers, "prefetch": prefetch, "augment": augment, "size": size})


@pytest.fixture
def pictures(prepared: Prepared) -> Dataset:
    return open_dataset(prepared(**JPEG)[0], "train")


def test_batches_are_the_same_for_any_number_of_workers(pictures: Dataset) -> None:
    made = []
    for workers in (0, 1, 3):
        with Loader(pictures, plan(48, 8, epochs=2), spec(workers), seed=5) as loader:
            made.append([(x.clone(), y.clone()) for x, y in loader])
            assert loader.bytes == 2 * pictures.stored_bytes
    assert len(made[0]) == 12
    for other in made[1:]:
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(made[0], other, strict=True))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_of_a_worker_is_raised_where_its_batch_is_due(workers: int, pictures: Dataset) -> None:
    order = list(plan(48, 8))
    pictures.files[order[2][1][0]].write_bytes(b"damaged")
    seen = 0
    with pytest.raises(UserError, match="cannot be read"), Loader(pictures, order, spec(workers), seed=0) as loader:
        for _ in loader:
            seen += 1
    assert seen == 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_no_more_batches_are_made_ahead_than_asked_for(pictures: Dataset) -> None:
    with Loader(pictures, plan(48, 1), spec(workers=2, prefetch=3), seed=0, slow_decode_s=0.001) as loader:
        next(iter(loader))
        time.sleep(0.3)
        assert loader.slow_decode == 7  # the one in use, and 2 x 3


@pytest.mark.slow
def test_a_batch_that_came_during_an_evaluation_was_not_ready_for_training(pictures: Dataset) -> None:
    with Loader(pictures, plan(48, 4), spec(1, prefetch=1), seed=0, slow_decode_s=0.05) as loader:
        for number, _ in enumerate(loader):
            if number == 5:
                with loader.pause():
                    time.sleep(1.0)
    # Training takes no time here, so it waits all the time but for the batches that the pause let come.
    assert loader.readiness["batches"] < 0.4
