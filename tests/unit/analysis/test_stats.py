"""Means, intervals and drift against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from scalestudy.analysis.stats import drift, interval, interval_of


def test_three_repeats_give_the_t_interval_of_the_mean() -> None:
    found = interval([9.0, 10.0, 11.0])

    assert found is not None
    # s = 1, t(0.975, 2) = 4.302653, half width 4.302653 / sqrt(3) = 2.484138
    assert (found.mean, found.n, found.least, found.most) == (10.0, 3, 9.0, 11.0)
    assert found.low == pytest.approx(7.515862, abs=1e-6)
    assert found.high == pytest.approx(12.484138, abs=1e-6)


def test_two_repeats_have_their_range() -> None:
    found = interval([1.0, 3.0])

    assert found is not None
    assert (found.mean, found.low, found.high, found.half_width) == (2.0, 1.0, 3.0, 1.0)


def test_one_repeat_has_a_mean_and_no_interval() -> None:
    found = interval([5.0, math.nan])

    assert found is not None
    assert (found.mean, found.n, found.low, found.half_width) == (5.0, 1, None, None)


def test_nothing_measured_has_no_mean() -> None:
    assert interval([math.nan]) is None


def test_drift_is_the_spread_of_first_middle_and_last_round_over_their_mean() -> None:
    # 100, 104 and 96 of five rounds: (104 - 96) / 100
    assert drift([100.0, 999.0, 104.0, 999.0, 96.0]) == pytest.approx(0.08)


def test_drift_needs_two_rounds() -> None:
    assert drift([100.0]) is None
    assert drift([100.0, math.nan, math.nan]) is None


def test_one_extrapolated_run_has_its_own_interval_and_several_have_that_of_their_mean() -> None:
    rows = [
        {"training_time_s": 10.0, "training_time_s_low": 9.0, "training_time_s_high": 12.0},
        {"training_time_s": 20.0, "training_time_s_low": 19.0, "training_time_s_high": 21.0},
    ]
    one, two = interval_of(rows[:1], "training_time_s"), interval_of(rows, "training_time_s")
    assert one is not None and two is not None
    assert (one.mean, one.low, one.high, one.n) == (10.0, 9.0, 12.0, 1)
    assert (two.mean, two.low, two.high, two.n) == (15.0, 10.0, 20.0, 2)


def test_one_measured_run_has_no_interval() -> None:
    found = interval_of(
        [{"training_time_s": 10.0, "training_time_s_low": math.nan, "training_time_s_high": None}], "training_time_s"
    )
    assert found is not None and found.high is None
