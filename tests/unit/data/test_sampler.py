from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.data.load.sampler import (
    MODULUS,
    StorageOrder,
    batches,
    epoch_order,
    node_steps,
    planned_checksums,
    sample_checksum,
    steps_per_epoch,
    storage_order,
    stream_order,
    through_buffer,
)
from scalestudy.errors import UserError

FIRST_STREAM = [[3, 6, 5], [8, 7, 0], [4, 2, 1]]
counts = st.integers(1, 200)
ranks = st.integers(1, 6)
seeds = st.integers(0, 2**31 - 1)


def test_order_stays_what_it_was_when_results_were_measured() -> None:
    assert epoch_order(10, 3, 2).tolist() == [4, 9, 8, 5, 3, 6, 7, 1, 2, 0]


@given(counts, ranks, st.integers(1, 8), seeds)
def test_ranks_share_the_global_batch_that_one_rank_would_see(
    samples: int, ranks: int, per_rank: int, seed: int
) -> None:
    global_batch = ranks * per_rank
    if samples < global_batch:
        return
    alone = batches(samples, global_batch, 0, 1, seed, 5)
    shared = [batches(samples, global_batch, rank, ranks, seed, 5) for rank in range(ranks)]
    assert alone.shape == (samples // global_batch, global_batch)
    assert np.array_equal(np.concatenate(shared, axis=1), alone)
    assert len(np.unique(alone)) == alone.size


@st.composite
def shards(draw: st.DrawFn) -> StorageOrder:
    """Samples in shards of any sizes, lying in them in any order."""
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
    shard = np.repeat(np.arange(len(sizes)), sizes)
    start = np.concatenate([draw(st.permutations(range(size))) for size in sizes])
    return storage_order(shard, start * 512, len(shard), draw(st.integers(1, 50)))


@given(shards(), ranks, st.integers(1, 5), seeds, st.integers(0, 3))
def test_each_epoch_of_a_stream_gives_every_rank_its_share_once_and_as_many_batches(
    data: StorageOrder, ranks: int, per_rank: int, seed: int, epoch: int
) -> None:
    samples, global_batch = len(data.order), ranks * per_rank
    if samples < global_batch:
        return
    shares = [batches(samples, global_batch, rank, ranks, seed, epoch, stream=data) for rank in range(ranks)]
    steps = steps_per_epoch(samples, global_batch)
    assert {share.shape for share in shares} == {(steps, per_rank)}
    seen = np.bincount(np.concatenate(shares).ravel(), minlength=samples)
    assert seen.max() == 1 and (seen == 0).sum() == samples - steps * global_batch < global_batch


@given(shards(), seeds)
def test_a_stream_reads_each_shard_from_its_begin_to_its_end(data: StorageOrder, seed: int) -> None:
    order = stream_order(data, seed, 0).tolist()
    sizes = np.diff(data.begins)
    assert len(order) == sizes.sum()
    for begin, end in zip(data.begins[:-1], data.begins[1:], strict=True):
        whole = data.order[begin:end].tolist()
        at = order.index(whole[0])
        assert order[at : at + len(whole)] == whole or len(sizes) == 1


@pytest.mark.parametrize(("counts", "why"), [([3, 0], "fewer shards"), ([9, 3], "a step takes 4 samples")])
def test_a_node_without_a_batch_of_its_own_is_an_error(counts: list[int], why: str) -> None:
    with pytest.raises(UserError, match=why):
        node_steps(np.array(counts), 4)


def test_a_stream_of_one_shard_gives_each_sample_and_each_rank_all_of_it_over_some_epochs() -> None:
    data = storage_order(np.zeros(250, np.int16), np.arange(250), 250, 20)
    seen = [[batches(250, 64, rank, 2, 7, epoch, stream=data) for epoch in range(30)] for rank in range(2)]
    assert [len(np.unique(of_rank)) for of_rank in seen] == [250, 250]
    assert batches(250, 64, 0, 2, 7, 4, stream=data).tolist() == seen[0][4].tolist()


@given(st.integers(0, 300), st.integers(1, 60), seeds)
def test_a_buffer_lets_each_sample_out_once_and_never_before_it_came_in(count: int, buffer: int, seed: int) -> None:
    left = through_buffer(np.arange(count) + 1000, buffer, seed)
    assert sorted(left) == list(range(1000, 1000 + count))
    assert all(sample - 1000 <= step + buffer - 1 for step, sample in enumerate(left.tolist()))


def test_a_streams_order_stays_what_it_was_when_results_were_measured() -> None:
    data = storage_order(np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3), 9, 3)
    assert batches(9, 3, 0, 1, 5, 1, stream=data).tolist() == FIRST_STREAM


# One number per rank shows samples that were lost, seen twice, or another rank's


def seen(samples: int, ranks: int, first: int, done: int) -> list[int]:
    """What ranks see from one step to another, batch by batch, with global batches of 12."""
    totals = [0] * ranks
    for rank in range(ranks):
        per_epoch = len(batches(samples, 12, rank, ranks, 7, 0))
        for step in range(first, done):
            epoch, place = divmod(step, per_epoch)
            batch = batches(samples, 12, rank, ranks, 7, epoch)[place]
            totals[rank] = (totals[rank] + sample_checksum(epoch, batch)) % MODULUS
    return totals


@pytest.mark.parametrize(("first", "done"), [(0, 0), (0, 3), (0, 4), (2, 9), (5, 6)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_ranks_see_step_by_step_is_what_was_planned(ranks: int, first: int, done: int) -> None:
    assert planned_checksums(50, 12, ranks, 7, first, done) == seen(50, ranks, first, done)


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
