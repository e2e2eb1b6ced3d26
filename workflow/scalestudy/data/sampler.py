"""Which samples a rank sees in which step: a function of seed and epoch, so a stopped run goes on at the very sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import draw
from scalestudy.errors import UserError

LastBatch = Literal["drop", "pad"]


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """[samples] the order of one epoch, the same on every rank."""
    return draw.permutation(samples, draw.ORDER, seed, epoch)


@dataclass(frozen=True)
class Stored:
    """How samples lie in shards, for reading them in sequence with a shuffle buffer."""

    order: NDArray[np.int64]
    """[samples] shard after shard, as they lie in them."""
    begins: NDArray[np.int64]
    """[shards + 1] where each shard begins in `order`."""
    buffer: int
    """Samples from which the next is drawn."""


RUN = 256
"""Files that count as a shard where each sample is a file of its own."""


def stored(shard: NDArray[np.integer], start: NDArray[np.int64], samples: int, buffer: int) -> Stored:
    """From an index's fields; where they are empty, runs of files in the order of the index are shards."""
    if not len(shard):
        return Stored(np.arange(samples), np.append(np.arange(0, samples, RUN), samples), buffer)
    order = np.lexsort((start, shard))
    return Stored(order, np.append(np.unique(shard[order], return_index=True)[1], samples), buffer)


def stream_order(data: Stored, seed: int, epoch: int) -> NDArray[np.int64]:
    """[samples] shards in random order, each as it is stored: what is read in sequence."""
    shards = draw.permutation(len(data.begins) - 1, draw.ORDER, seed, epoch)
    return np.concatenate([data.order[data.begins[shard] : data.begins[shard + 1]] for shard in shards.tolist()])


def through_buffer(sequence: NDArray[np.int64], buffer: int, *keys: int) -> NDArray[np.int64]:
    """The order in which samples leave a buffer of that size, each drawn at random from what is in it."""
    drawn = draw.uniforms(1, *keys, np.arange(len(sequence)))[:, 0].tolist()
    coming = sequence.tolist()
    held, rest = coming[:buffer], iter(coming[buffer:])
    left: list[int] = []
    for number in drawn:
        place = int(number * len(held))
        left.append(held[place])
        following = next(rest, None)
        if following is not None:
            held[place] = following
        else:
            held[place] = held[-1]
            held.pop()
    return np.array(left, np.int64)


def steps_per_epoch(samples: int, global_batch: int, last: LastBatch = "drop") -> int:
    """Steps of one epoch, the same on every rank. UserError where not even one global batch is there."""
    steps = samples // global_batch if last == "drop" else -(-samples // global_batch)
    if steps == 0 or samples == 0:
        raise UserError(
            f"a step takes {global_batch} samples, and the training data has {samples}",
            "batch",
            f"make the global batch {samples} or smaller, or raise `data.scale`",
        )
    return steps


def batches(
    samples: int,
    global_batch: int,
    rank: int,
    ranks: int,
    seed: int,
    epoch: int,
    *,
    last: LastBatch = "drop",
    stream: Stored | None = None,
) -> NDArray[np.int64]:
    """[steps, rank_batch] the samples of one rank in one epoch; the same number of steps on every rank.

    Step s takes the s-th `global_batch` samples of the order and rank r the r-th share of them, so that the global
    batch of a step is the same for any number of ranks. In a stream, each rank has a contiguous part of what is read in
    sequence, so that no two ranks read the same bytes; the global batch then depends on the number of ranks.

    The last global batch, where it is incomplete, is dropped; or padded with samples from the start of the order, so
    that every sample is seen, and fewer than `global_batch` of them twice.
    """
    assert global_batch % ranks == 0, "the spec refuses batches that ranks cannot share equally"
    steps = steps_per_epoch(samples, global_batch, last)
    order = epoch_order(samples, seed, epoch) if stream is None else stream_order(stream, seed, epoch)
    order = np.resize(order, steps * global_batch)  # cuts, or repeats from the start
    if stream is None:
        return np.ascontiguousarray(order.reshape(steps, ranks, global_batch // ranks)[:, rank])
    part = order.reshape(ranks, -1)[rank]
    return through_buffer(part, stream.buffer, draw.BUFFER, seed, epoch, rank).reshape(steps, -1)


def evaluation_share(samples: int, rank: int, ranks: int) -> NDArray[np.int64]:
    """The held-out samples of one rank: each sample on exactly one rank, counts differ by at most one."""
    return np.arange(rank, samples, ranks)
