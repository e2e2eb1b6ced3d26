"""How benchmarks turn ratios into intervals and verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.exchange import told
from benchmarks.ratios import Estimate, ratio_of, ratio_of_sets


def test_the_interval_holds_the_ratio_as_often_as_it_says_where_sets_differ_more_than_what_is_in_them() -> None:
    """Ten sets of fifteen pairs, 4 % between sets and 8 % within: pooled pairs would hold the ratio in 77 %."""
    random = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        sets = np.exp(math.log(1.02) + random.normal(0, 0.04, (10, 1)) + random.normal(0, 0.08, (10, 15)))
        found = ratio_of_sets(sets.tolist())
        held += found.low <= 1.02 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_two_sets_decide_nothing() -> None:
    found = ratio_of([1.0, 1.01])

    assert (found.low, found.high) == (0.0, math.inf)
    assert found.at_most(1000.0) == "undecided"


@pytest.mark.parametrize(
    ("ends", "at_most", "at_least"),
    [((0.9, 1.02), "holds", "MISSED"), ((0.99, 1.04), "undecided", "undecided"), ((1.04, 1.2), "MISSED", "holds")],
)
def test_a_limit_of_1_03_is_held_or_missed_only_by_the_whole_interval(
    ends: tuple[float, float], at_most: str, at_least: str
) -> None:
    found = Estimate(1.0, *ends, 10)
    assert (found.at_most(1.03), found.at_least(1.03)) == (at_most, at_least)


def test_alternations_do_not_make_up_for_sets() -> None:
    assert not told([[1.0] * 1000] * 9, 40)
    assert told([[1.0] * 15] * 10, 40)
    assert not told([[1.0] * 15, [1.5] * 15] * 5, 40)
    assert told([[1.0] * 15, [1.5] * 15] * 20, 40)
