from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.data.load.loader import Loader
from scalestudy.data.load.sampler import batches
from scalestudy.errors import UserError
from scalestudy.spec import run
from tests.integration.processes import wait_until
from tests.unit.data.conftest import Prepared

JPEG = {"source": "synthetic_jpeg", "samples": 48, "width": 96, "height": 64, "mean_kib": 3.0}


def plan(samples: int, batch: int) -> Iterator[tuple[int, np.ndarray]]:
    return ((0, indices) for indices in batches(samples, batch, 0, 1, 0, 0))


def spec(workers: int, prefetch: int = 2) -> run.Loader:
    options = {"workers": workers, "prefetch": prefetch, "augment": "crop_flip", "size": 32}
    return run.Loader.model_validate(options)


@pytest.fixture
def pictures(prepared: Prepared) -> Dataset:
    return open_dataset(prepared(**JPEG)[0], "train")


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
        ahead = 7  # the one in use, and 2 x 3
        assert wait_until(lambda: loader.slow_decode >= ahead, 30)
        time.sleep(0.1)
        assert loader.slow_decode == ahead
