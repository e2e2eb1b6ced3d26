"""The decision rule: false decisions, power and coverage; p-values that agree with intervals; claims that share one error."""

from __future__ import annotations

import numpy as np
import pytest

from scalestudy.claims.inference import Estimate, Region, holm, rounds_needed, together
from tests.soak.verdict_rule import (
    FIXED_ORDER,
    KINDS,
    LIMIT_OF_MACHINES,
    Kind,
    busy_coverage,
    judged_shares,
    looking_again,
    power,
)

DRAWS = 400
TOLERANCE = 0.033
"""Three standard errors of a share of 0.05 in so many draws."""
ABOVE_ONE = Region(low=1.0)
LIMITS = [kind for kind in KINDS if kind.name in (LIMIT_OF_MACHINES, FIXED_ORDER)]
HELD = [kind for kind in KINDS if kind not in LIMITS]
DAILY = {(kind.test, kind.column, kind.take, kind.apart): kind.name for kind in HELD}.values()
"""One kind for each way of estimating; `pytest -m soak` has all."""


def rounds(*values: float, own: float = 0.0, log: bool = False) -> Estimate:
    return Estimate(values, own, log)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.soak] * (kind.name not in DAILY), id=kind.name) for kind in HELD],
)
def test_a_number_at_its_limit_is_decided_in_at_most_5_percent_each_way(kind: Kind) -> None:
    assert max(judged_shares(kind, 5, DRAWS)["rule"]) <= 0.05 + TOLERANCE


@pytest.mark.parametrize("kind", LIMITS, ids=lambda kind: kind.name)
def test_sides_alike_from_round_to_round_and_an_order_that_is_not_drawn_are_limits_of_the_rule(kind: Kind) -> None:
    """docs/explanation/verdicts.md names both with their shares."""
    assert max(judged_shares(kind, 5, DRAWS)["rule"]) > 0.05 + TOLERANCE


def test_an_effect_of_10_percent_is_decided_in_at_least_80_percent_with_five_rounds_that_spread_by_3_percent() -> None:
    assert power(0.10, n=5, spread=0.03, draws=DRAWS) >= 0.80


def test_planned_looks_share_one_error_and_unplanned_ones_do_not() -> None:
    assert max(looking_again(planned=True, draws=DRAWS)) <= 0.05 + TOLERANCE / 2
    assert sum(looking_again(planned=False, draws=DRAWS)) > 0.08


@pytest.mark.parametrize("n", [5, 8])
def test_ratios_of_configurations_on_a_busy_machine_are_covered_in_93_percent(n: int) -> None:
    assert busy_coverage(n) >= 0.93


@pytest.mark.parametrize("confidence", [0.95, 0.90])
def test_an_error_that_rounds_share_widens_the_interval_to_what_it_says(confidence: float) -> None:
    """An error of one percent, ten times the spread of the rounds; the true value is 2."""
    draw = np.random.default_rng(0)
    drawn = [np.log(2) + draw.normal(0, 0.01) + draw.normal(0, 0.001, 5) for _ in range(1500)]
    intervals = [rounds(*each, own=0.01, log=True).interval(confidence) for each in drawn]
    assert np.mean([low <= 2 <= high for low, high in intervals]) == pytest.approx(confidence, abs=0.02)


def test_a_limit_at_the_end_of_the_interval_has_the_interval_s_error_as_p_value() -> None:
    values = (0.20, 0.21, 0.30, 0.39, 0.40)
    for found in (rounds(*values), rounds(*values, own=0.07), rounds(*values, log=True)):
        low, high = found.interval(0.95)
        assert found.p(1, low) == pytest.approx(0.025, rel=1e-6)
        assert found.p(-1, high) == pytest.approx(0.025, rel=1e-6)


def test_one_round_of_five_on_the_other_side_of_a_limit_leaves_it_undecided() -> None:
    few, many = (1.10, 1.11, 1.12, 1.13, 0.99), (1.10, 1.11, 1.12, 1.13, 1.10, 1.11, 1.12, 0.99)
    assert rounds(*few).p(1, 1.0) == pytest.approx(0.1875)  # (1 + 5) / 2^5
    assert rounds(*many).p(1, 1.0) < 0.025
    assert rounds(*few).interval(0.95)[0] < 1.0 < rounds(*many).interval(0.95)[0]
    assert (rounds(*few).value, rounds(*few).apart) == (1.11, 1)


def test_an_equivalence_holds_where_the_90_percent_interval_lies_within_the_margin() -> None:
    found = rounds(0.00, 0.01, 0.02, 0.03, 0.04)
    low, high = found.interval(0.90)
    for margin, holds in ((high + 1e-6, True), (high - 1e-6, False)):
        assert (Region(-margin, margin, one_sided=True).p_inside(found) <= 0.05) is holds
    assert low > -high


def test_several_comparisons_hold_with_the_worst_p_and_one_against_decides() -> None:
    clear, close, against = (rounds(*np.linspace(mean - 0.1, mean + 0.1, 5)) for mean in (2.0, 1.2, 0.2))
    mixed, both_hold = together(ABOVE_ONE, [clear, against, close]), together(ABOVE_ONE, [clear, close])
    assert (both_hold.holds, both_hold.deciding, both_hold.p) == (True, 1, pytest.approx(2 * close.p(1, 1.0)))
    assert (mixed.holds, mixed.deciding, mixed.p) == (False, 1, pytest.approx(6 * against.p(-1, 1.0)))


@pytest.mark.parametrize("gap", [0.03, 0.05])
def test_the_recommended_rounds_decide_in_80_percent(gap: float) -> None:
    found = rounds(*(gap + 0.04 * value for value in (-1.265, -0.632, 0, 0.632, 1.265)), log=True)
    needed = rounds_needed(ABOVE_ONE, found)
    drawn = np.random.default_rng(0).normal(gap, 0.04, (DRAWS, needed))
    decided = np.mean([ABOVE_ONE.p_inside(rounds(*each, log=True)) <= 0.05 for each in drawn])
    assert 0.74 <= decided <= 0.92


def test_p_values_are_adjusted_as_holm_does_it() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm([0.9, 0.8]), holm([0.02]), holm([])) == ([1.0, 1.0], [0.02], [])
