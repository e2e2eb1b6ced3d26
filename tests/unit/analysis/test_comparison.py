"""Verdicts from paired log-ratios: each can come out every way, and is right as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scalestudy.analysis.comparison import exit_status, geometric_mean, judged, log_ratios


def logs(*ratios: float) -> list[float]:
    return [math.log(ratio) for ratio in ratios]


def test_repeats_are_paired_and_those_without_a_partner_left_out() -> None:
    assert log_ratios({0: 100.0, 1: 50.0, 2: 10.0}, {1: 100.0, 0: 100.0, 3: 1.0}) == [0.0, math.log(2.0)]


def test_speeds_that_are_none_are_left_out() -> None:
    assert log_ratios({0: 0.0, 1: 1.0, 2: math.nan}, {0: 1.0, 1: 1.0, 2: 1.0}) == [0.0]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.90, 0.91, 0.90, 0.89), "slower"),
        ((1.10, 1.11, 1.10, 1.09), "faster"),
        ((1.00, 1.01, 0.99, 1.00), "same"),
        ((0.90, 1.20, 0.80, 1.10), "undecided"),
        ((0.97, 0.98, 0.96, 0.97), "undecided"),
        ((0.5, 0.5), "undecided"),
        ((0.9, 0.9, 0.9), "slower"),
        ((), "undecided"),
    ],
)
def test_a_configuration_can_come_out_every_way(ratios: tuple[float, ...], verdict: str) -> None:
    (change,) = judged([logs(*ratios)], margin=0.03)
    assert change.verdict == verdict
    assert (change.reason == "") == (verdict != "undecided")


def test_the_interval_is_students_on_the_logarithms() -> None:
    (change,) = judged([logs(0.8, 0.9, 1.0)], margin=0.0)
    # mean and s of ln: -0.109501, 0.111631; t(0.975, 2) = 4.302653
    assert change.ratio == pytest.approx(0.896281, abs=1e-6)
    assert change.low == pytest.approx(0.67922, abs=2e-5)
    assert change.high == pytest.approx(1.18271, abs=2e-5)
    assert change.n == 3


def test_what_is_beyond_the_margin_alone_is_undecided_among_many() -> None:
    close = logs(0.90, 0.93, 0.91)
    assert judged([close], margin=0.03)[0].verdict == "slower"
    among = judged([close, *([logs(1.0, 1.05, 0.95)] * 20)], margin=0.03)[0]
    assert among.verdict == "undecided"
    assert among.reason == "beyond the margin by itself, not among so many configurations"
    # As many as the test of 21 configurations needs, not that of one, which three pairs satisfy.
    assert among.repeats_needed is not None
    assert 4 <= among.repeats_needed <= 8


def test_undecided_says_how_many_repeats_would_decide_it() -> None:
    (change,) = judged([logs(0.94, 1.03, 0.97, 1.02)], margin=0.03)
    assert change.verdict == "undecided"
    assert change.repeats_needed is not None
    assert change.repeats_needed > 4
    # With so many of the same, it is decided.
    many = logs(0.94, 1.03, 0.97, 1.02) * (change.repeats_needed // 4 + 2)
    assert judged([many], margin=0.03)[0].verdict == "same"


def test_the_gates_status_is_that_of_the_worst() -> None:
    assert exit_status(["same", "faster"]) == 0
    assert exit_status(["same", "undecided"]) == 3
    assert exit_status(["undecided", "slower", "same"]) == 1


def test_the_geometric_mean_is_over_configurations() -> None:
    assert geometric_mean(judged([logs(2.0), logs(0.5)], margin=0.03)) == pytest.approx(1.0)
    assert geometric_mean(judged([[]], margin=0.03)) is None


@pytest.mark.parametrize("n", [3, 5, 10])
def test_intervals_hold_the_truth_as_often_as_they_say(n: int) -> None:
    rng = np.random.default_rng(n)
    changes = judged(rng.normal(math.log(0.95), 0.04, (2000, n)).tolist(), margin=0.03)
    held = sum(change.low <= 0.95 <= change.high for change in changes if change.low and change.high)
    # 1,900 expected; the standard deviation is 9.7
    assert 1860 <= held <= 1940


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 10])
def test_equal_machines_give_a_false_alarm_in_at_most_5_percent_of_comparisons(n: int) -> None:
    rng = np.random.default_rng(n)
    alarms = 0
    for _ in range(1000):
        changes = judged(rng.normal(0.0, 0.05, (10, n)).tolist(), margin=0.0)
        alarms += any(change.verdict in ("slower", "faster") for change in changes)
    # 50 expected with a margin of 0; the standard deviation is 6.9
    assert alarms <= 67


def test_a_change_at_the_margin_is_called_same_in_at_most_5_percent() -> None:
    rng = np.random.default_rng(7)
    changes = judged(rng.normal(math.log1p(0.03), 0.02, (2000, 5)).tolist(), margin=0.03)
    assert sum(change.verdict == "same" for change in changes) <= 130
