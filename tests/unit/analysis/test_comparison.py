"""Verdicts from log-ratios: each can come out every way, and is right as often as it says."""

from __future__ import annotations

import math

import pytest

from scalestudy.analysis.compare import Change, of_repeats
from tests.soak.verdict_rule import false_alarms, found_slower


def changes(*configurations: tuple[float, ...], margin: float = 0.03, of_next: bool = False) -> list[Change]:
    """What is found of configurations with these ratios."""
    logs = {str(place): [math.log(ratio) for ratio in ratios] for place, ratios in enumerate(configurations)}
    return list(of_repeats(logs, margin, of_next).values())


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.90, 0.91, 0.90, 0.89), "slower"),
        ((1.10, 1.11, 1.10, 1.09), "faster"),
        ((1.00, 1.01, 0.99, 1.00), "same"),
        ((0.90, 1.20, 0.80, 1.10), "undecided"),
        ((0.97, 0.98, 0.96, 0.97), "undecided"),
        ((0.9, 0.9, 0.9), "slower"),
        ((0.9, 0.9), "undecided"),
    ],
)
def test_a_configuration_can_come_out_every_way(ratios: tuple[float, ...], verdict: str) -> None:
    (change,) = changes(ratios)
    assert change.verdict == verdict
    assert (change.reason == "") == (verdict != "undecided")


def test_the_interval_of_the_next_number_is_twice_as_wide_as_that_of_the_mean_of_three() -> None:
    (change,) = changes((0.8, 0.9, 1.0), margin=0.0, of_next=True)
    # √(1 + 1/3) / √(1/3) = 2
    assert change.low == pytest.approx(math.exp(-0.109501 - 2 * 4.302653 * 0.111631 / math.sqrt(3)), abs=2e-5)


def test_what_is_beyond_the_margin_alone_is_undecided_among_many() -> None:
    close = (0.90, 0.93, 0.91)
    assert changes(close)[0].verdict == "slower"
    among = changes(close, *[(1.0, 1.05, 0.95)] * 20)[0]
    assert among.verdict == "undecided"
    assert among.reason == "beyond the margin by itself, not among so many configurations"
    # As many as the test of 21 configurations needs, not that of one, which three pairs satisfy.
    assert 4 <= among.repeats_needed <= 8


def test_undecided_says_how_many_repeats_would_decide_it() -> None:
    (change,) = changes((0.94, 1.03, 0.97, 1.02))
    assert (change.verdict, change.reason) == ("undecided", "the interval is too wide")
    assert change.repeats_needed is not None and change.repeats_needed > 4
    assert changes((0.94, 1.03, 0.97), of_next=True)[0].repeats_needed is None


def test_a_machine_whose_nights_differ_by_2_percent_is_called_slower_or_faster_in_at_most_5_percent() -> None:
    alarms = [false_alarms(3, campaigns=3, common=common, margin=0.0, draws=300) for common in (True, False)]
    # 5 % of 300, and four standard errors of such a count.
    assert max(alarms) <= 0.05 + 0.05


def test_a_slow_down_of_20_percent_is_found_with_five_campaigns() -> None:
    assert found_slower(0.20, n=5, campaigns=5, draws=200) >= 0.8
