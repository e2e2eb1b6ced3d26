from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.data.sampler import batches, epoch_order, evaluation_share
from scalestudy.errors import UserError

counts = st.integers(1, 200)
ranks = st.integers(1, 6)
seeds = st.integers(0, 2**31 - 1)


@given(counts, seeds, st.integers(0, 10_000))
def test_an_epoch_visits_every_sample_once(samples: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(samples, seed, epoch)) == list(range(samples))


def test_order_changes_with_the_epoch_and_with_the_seed() -> None:
    first = epoch_order(1000, 0, 0)
    assert not np.array_equal(first, epoch_order(1000, 0, 1))
    assert not np.array_equal(first, epoch_order(1000, 1, 0))


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


def test_too_few_samples_for_one_step_is_an_error_with_both_numbers() -> None:
    with pytest.raises(UserError, match="takes 64 samples, and the training data has 10"):
        batches(10, 64, 0, 1, 0, 0)


@given(st.integers(0, 200), ranks)
def test_evaluation_sees_each_sample_on_exactly_one_rank(samples: int, ranks: int) -> None:
    shares = [evaluation_share(samples, rank, ranks) for rank in range(ranks)]
    assert sorted(np.concatenate(shares)) == list(range(samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
