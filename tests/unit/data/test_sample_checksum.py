"""One number per rank shows samples that were lost, seen twice, or another rank's."""

from __future__ import annotations

import numpy as np
import pytest

from scalestudy.data.load.sampler import MODULUS, LastBatch, batches, planned_checksums, sample_checksum


def seen(samples: int, ranks: int, first: int, done: int, last: LastBatch = "drop") -> list[int]:
    """What ranks see from one step to another, batch by batch, with global batches of 12."""
    totals = [0] * ranks
    for rank in range(ranks):
        per_epoch = len(batches(samples, 12, rank, ranks, 7, 0, last=last))
        for step in range(first, done):
            epoch, place = divmod(step, per_epoch)
            batch = batches(samples, 12, rank, ranks, 7, epoch, last=last)[place]
            totals[rank] = (totals[rank] + sample_checksum(epoch, batch)) % MODULUS
    return totals


@pytest.mark.parametrize(("first", "done"), [(0, 0), (0, 3), (0, 4), (2, 9), (5, 6)])
@pytest.mark.parametrize("last", ["drop", "pad"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_ranks_see_step_by_step_is_what_was_planned(ranks: int, first: int, done: int, last: LastBatch) -> None:
    assert planned_checksums(50, 12, ranks, 7, first, done, last) == seen(50, ranks, first, done, last)


def test_the_order_does_not_matter_and_the_number_of_times_and_the_epoch_do() -> None:
    samples = np.arange(20)
    number = sample_checksum(3, samples)
    assert (
        sample_checksum(3, samples[::-1])
        == (sample_checksum(3, samples[:5]) + sample_checksum(3, samples[5:])) % MODULUS
        == number
    )
    assert sample_checksum(3, np.append(samples, 4)) != number
    assert sample_checksum(3, samples[1:]) != number
    assert sample_checksum(3, np.append(samples[1:], 1)) != number
    assert sample_checksum(4, samples) != number
    assert sample_checksum(3, samples[:0]) == 0
