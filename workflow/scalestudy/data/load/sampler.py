"""Which samples a rank sees in which step: a function of seed and epoch, so that a stopped run can be resumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.errors import UserError


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """[samples] the order of one epoch, the same on every rank."""
    return counter_rng.permutation(samples, counter_rng.ORDER, seed, epoch)


@dataclass(frozen=True)
class StorageOrder:
    """The order of samples in shards, for reading them in sequence with a shuffle buffer."""

    order: NDArray[np.int64]
    """[samples] shard after shard, as stored."""
    begins: NDArray[np.int64]
    """[shards + 1] where each shard begins in `order`."""
    buffer: int
    """Samples in the shuffle buffer, from which the next one is drawn."""


RUN = 256
"""Files that count as a shard where each sample is a separate file."""


def storage_order(shard: NDArray[np.integer], start: NDArray[np.int64], samples: int, buffer: int) -> StorageOrder:
    """From an index's fields; where they are empty, runs of files in the order of the index are shards."""
    if not len(shard):
        return StorageOrder(np.arange(samples), np.append(np.arange(0, samples, RUN), samples), buffer)
    order = np.lexsort((start, shard))
    return StorageOrder(order, np.append(np.unique(shard[order], return_index=True)[1], samples), buffer)


def stream_order(data: StorageOrder, seed: int, epoch: int) -> NDArray[np.int64]:
    """[samples] shards in random order, each in storage order: the sequence that is read.

    A single shard is rotated by a random offset per epoch, so that ranks and the incomplete last batch get other samples.
    """
    shards = counter_rng.permutation(len(data.begins) - 1, counter_rng.ORDER, seed, epoch)
    order = np.concatenate([data.order[data.begins[shard] : data.begins[shard + 1]] for shard in shards.tolist()])
    if len(shards) > 1:
        return order
    return np.roll(order, int(counter_rng.hashed(counter_rng.ORDER, seed, epoch)[0] % np.uint64(len(order))))


def through_buffer(sequence: NDArray[np.int64], buffer: int, *keys: int) -> NDArray[np.int64]:
    """The order in which samples leave a buffer of that size, each drawn at random from what is in it."""
    drawn = counter_rng.uniforms(1, *keys, np.arange(len(sequence)))[:, 0].tolist()
    coming = sequence.tolist()
    held, rest = coming[:buffer], iter(coming[buffer:])
    left: list[int] = []
    for number in drawn:
        place = int(number * len(held))
        left.append(held[place])
        following = next(rest, None)
        held[place] = held[-1] if following is None else following
        if following is None:
            held.pop()
    return np.array(left, np.int64)


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Steps of one epoch, the same on every rank: an incomplete last batch is left out. UserError where there is none."""
    steps = samples // global_batch
    if steps == 0:
        what = f"a step takes {global_batch} samples, and the training data has {samples}"
        raise UserError(what, "batch", f"make the global batch {samples} or smaller, or raise `data.scale`")
    return steps


def batches(
    samples: int,
    global_batch: int,
    rank: int,
    ranks: int,
    seed: int,
    epoch: int,
    *,
    stream: StorageOrder | None = None,
    steps: int | None = None,
) -> NDArray[np.int64]:
    """[steps, rank_batch] the samples of one rank in one epoch; the same number of steps on every rank.

    Step s takes the s-th `global_batch` samples of the order and rank r the r-th share of them, so that the global
    batch of a step is the same for any number of ranks. In a stream, each rank has a contiguous part of what is read in
    sequence, so that no two ranks read the same bytes; the global batch then depends on the number of ranks.

    The last global batch, where it is incomplete, is left out, and whatever comes after `steps`, where it is given.
    """
    assert global_batch % ranks == 0, "the spec refuses batches that ranks cannot share equally"
    steps = steps or steps_per_epoch(samples, global_batch)
    order = epoch_order(samples, seed, epoch) if stream is None else stream_order(stream, seed, epoch)
    order = order[: steps * global_batch]
    if stream is None:
        return np.ascontiguousarray(order.reshape(steps, ranks, global_batch // ranks)[:, rank])
    part = order.reshape(ranks, -1)[rank]
    return through_buffer(part, stream.buffer, counter_rng.BUFFER, seed, epoch, rank).reshape(steps, -1)


@dataclass(frozen=True)
class NodeShare:
    """The training samples of one node, where each node has its own and no others."""

    samples: NDArray[np.int64]
    """Numbers of the samples that the node has, ascending."""
    steps: int
    """Of one epoch, the same on all nodes."""

    def batches(
        self,
        node_batch: int,
        local_rank: int,
        ranks_per_node: int,
        seed: int,
        epoch: int,
        stream: StorageOrder | None = None,
    ) -> NDArray[np.int64]:
        """[steps, rank_batch] the samples of one of the node's ranks in one epoch: as `batches`, among the node's own.

        Nodes that have more samples than others leave some out, others each epoch.
        """
        own = None if stream is None else self._own(stream)
        how = (len(self.samples), node_batch, local_rank, ranks_per_node, seed, epoch)
        return self.samples[batches(*how, stream=own, steps=self.steps)]

    def _own(self, stream: StorageOrder) -> StorageOrder:
        """The storage order of the node's samples; numbers are places in `samples`."""
        place = np.full(len(stream.order), -1, np.int64)
        place[self.samples] = np.arange(len(self.samples))
        shard = np.repeat(np.arange(len(stream.begins) - 1), np.diff(stream.begins))
        kept = place[stream.order] >= 0
        begins = np.append(np.unique(shard[kept], return_index=True)[1], kept.sum())
        return StorageOrder(place[stream.order[kept]], begins, stream.buffer)


def node_steps(counts: NDArray[np.int64], node_batch: int) -> int:
    """Steps of one epoch where nodes have so many samples each: as the node with the fewest has whole batches.

    Raises UserError where a node has not even one batch.
    """
    if counts.min() == 0:
        what = "a node would have no training data: there are fewer shards (or files) than nodes"
        raise UserError(what, "stage.share", "lower `data.shard.mib`, or set `stage.share: all`")
    return steps_per_epoch(int(counts.min()), node_batch)


# One number for the samples that a rank trained on: what was lost, seen twice or seen by another rank changes it. It is
# the sum of a hash of each epoch and sample, modulo 2^64: the order does not matter, the number of times does.

MODULUS = 2**64


def sample_checksum(epoch: int, samples: NDArray[np.int64]) -> int:
    """The number for these samples of one epoch; those of several calls are added modulo MODULUS."""
    return int(counter_rng.hashed(counter_rng.SEEN, epoch, samples.ravel()).sum(dtype=np.uint64))


def planned_checksums(samples: int, global_batch: int, ranks: int, seed: int, first: int, done: int) -> list[int]:
    """By rank, the number for the steps from `first` to the one before `done`, each sample read by itself.

    Step s of an epoch takes the s-th `global_batch` samples of the epoch's order, and rank r the r-th share of them.
    """
    steps = steps_per_epoch(samples, global_batch)
    totals = [0] * ranks
    for epoch in range(first // steps, -(-done // steps)):
        order = epoch_order(samples, seed, epoch)[: steps * global_batch]
        begin = epoch * steps
        due = order.reshape(steps, ranks, -1)[max(0, first - begin) : done - begin]
        totals = [(total + sample_checksum(epoch, due[:, rank])) % MODULUS for rank, total in enumerate(totals)]
    return totals
