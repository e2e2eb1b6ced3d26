"""Interval algebra, against every moment counted one by one."""

from __future__ import annotations

import numpy as np
import pytest

from scalestudy.measure.intervals import NONE, Intervals, difference, intersection, total, union

MOMENTS = 60


def moments(intervals: Intervals) -> set[int]:
    """The whole numbers k of which the stretch from k to k + 1 is in an interval."""
    return {moment for begin, end in intervals.tolist() for moment in range(int(begin), int(end))}


@pytest.mark.parametrize("seed", range(50))
def test_the_algebra_agrees_with_counting(seed: int) -> None:
    draws = np.random.default_rng(seed)
    one, other = (draws.integers(0, MOMENTS, (draws.integers(0, 12), 2)) for _ in range(2))
    raw = [set().union(*(range(begin, end) for begin, end in part.tolist())) for part in (one, other)]
    first, second = union(one), union(other)

    assert (moments(first), moments(union(one, other))) == (raw[0], raw[0] | raw[1])
    assert moments(intersection(first, second)) == raw[0] & raw[1]
    assert moments(difference(first, second)) == raw[0] - raw[1]
    assert total(first) == len(raw[0])
    assert (first[1:, 0] > first[:-1, 1]).all()  # in order, and apart


def test_intervals_that_touch_are_one_and_empty_ones_are_none() -> None:
    assert union([(2, 3), (0, 1), (1, 2), (5, 5)]).tolist() == [[0, 3]]
    assert total(intersection(NONE, union([(0, 1)]))) == 0
