"""One number for the samples that a rank trained on: what was lost, seen twice or seen by another rank changes it.

It is the sum of a hash of each epoch and sample, modulo 2^64: the order does not matter, the number of times does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.data.load.sampler import LastBatch, epoch_order, steps_per_epoch

MODULUS = 2**64
BLOCK = 1 << 20
"""Samples that are hashed at a time."""


def sample_checksum(epoch: int, samples: NDArray[np.int64]) -> int:
    """The number for these samples of one epoch; those of several calls are added modulo MODULUS."""
    return int(counter_rng.hashed(counter_rng.SEEN, epoch, samples.ravel()).sum(dtype=np.uint64))


def planned_checksums(
    samples: int, global_batch: int, ranks: int, seed: int, first: int, done: int, last: LastBatch = "drop"
) -> list[int]:
    """By rank, the number for the steps from `first` to the one before `done`, each sample read by itself.

    Step s of an epoch takes the s-th `global_batch` samples of the epoch's order, and rank r the r-th share of them.
    """
    steps = steps_per_epoch(samples, global_batch, last)
    totals = [0] * ranks
    for epoch in range(first // steps, -(-done // steps)):
        order = np.resize(epoch_order(samples, seed, epoch), steps * global_batch)
        begin, end = max(0, first - epoch * steps), min(steps, done - epoch * steps)
        at_once = max(1, BLOCK // global_batch)
        for step in range(begin, end, at_once):
            part = order[step * global_batch : min(end, step + at_once) * global_batch]
            hashes = counter_rng.hashed(counter_rng.SEEN, epoch, part).reshape(-1, ranks, global_batch // ranks)
            sums = hashes.sum(axis=(0, 2), dtype=np.uint64).tolist()
            totals = [(total + found) % MODULUS for total, found in zip(totals, sums, strict=True)]
    return totals
