"""Intervals cover as often as they say, p-values agree with them, and claims that are judged together share one error."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from scalestudy.claims.inference import Estimate, Region, holm, of_rounds, of_two_samples, rounds_needed, together

TRIALS = 1500
TOLERANCE = 0.02
"""About three and a half standard errors of a share of 0.95 in so many trials."""


def paired(draw: np.random.Generator, n: int) -> Estimate:
    """Log-ratios of pairs whose rounds are disturbed together; the true ratio is 2."""
    round_effect = draw.normal(0, 0.3, n)
    of = np.log(200) + round_effect + draw.normal(0, 0.05, n)
    against = np.log(100) + round_effect + draw.normal(0, 0.05, n)
    return of_rounds(list(of - against), log=True)


def unpaired(draw: np.random.Generator, n: int) -> Estimate:
    """Two samples of unlike spread and size; the true ratio is 2."""
    of, against = draw.normal(np.log(2), 0.10, n), draw.normal(0, 0.03, n + 2)
    return of_two_samples(list(of), list(against), log=True)


def extrapolated(draw: np.random.Generator, n: int) -> Estimate:
    """Numbers that share an error of one percent, ten times the spread of their rounds; the true value is 2."""
    common = draw.normal(0, 0.01)
    return of_rounds(list(np.log(2) + common + draw.normal(0, 0.001, n)), own=0.01, log=True)


@pytest.mark.parametrize("confidence", [0.95, 0.90])
@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("estimate", [paired, unpaired, extrapolated])
def test_an_interval_covers_the_true_number_as_often_as_it_says(
    estimate: Callable[[np.random.Generator, int], Estimate], n: int, confidence: float
) -> None:
    draw = np.random.default_rng(n)
    intervals = [estimate(draw, n).interval(confidence) for _ in range(TRIALS)]
    covered = np.mean([low <= 2 <= high for low, high in intervals])
    assert confidence - TOLERANCE <= covered <= confidence + 3 * TOLERANCE


def test_a_limit_at_the_end_of_the_interval_has_the_interval_s_error_as_p_value() -> None:
    for found in (Estimate(0.3, 0.1, 4, 5), Estimate(0.3, 0.1, 4, 5, own=0.07), Estimate(0.3, 0.1, 4, 5, log=True)):
        for confidence in (0.90, 0.95):
            for end in found.interval(confidence):
                assert found.p(end) == pytest.approx(1 - confidence, rel=1e-6)


def test_numbers_without_spread_are_certain() -> None:
    found = of_rounds([7.0, 7.0, 7.0])
    assert found.interval(0.95) == (7.0, 7.0)
    assert (found.p(7.0), found.p(6.9)) == (1.0, 0.0)


def test_equal_decimal_fractions_have_no_spread() -> None:
    assert of_rounds([0.1 + 0.2, 0.3, 0.3]).se == 0.0


def test_an_equivalence_holds_where_the_90_percent_interval_lies_within_the_margin() -> None:
    found = of_rounds([0.00, 0.01, 0.02, 0.03, 0.04])
    low, high = found.interval(0.90)
    for margin, holds in ((high + 1e-6, True), (high - 1e-6, False)):
        region = Region(-margin, margin, one_sided=True)
        assert region.holds(found)
        assert (region.p(found) <= 0.05) is holds
    assert low > -high


def test_several_comparisons_hold_with_the_worst_p_and_one_against_decides() -> None:
    above_one = Region(low=1.0)
    clear, close, against = (Estimate(mean, 0.1, 9, 10) for mean in (2.0, 1.4, 0.2))
    both = together(above_one, [clear, close])
    assert (both.holds, both.deciding) == (True, 1)
    assert both.p == pytest.approx(close.p(1.0))
    mixed = together(above_one, [clear, against, close])
    assert (mixed.holds, mixed.deciding) == (False, 1)
    assert mixed.p == pytest.approx(3 * against.p(1.0))


def test_the_rounds_said_to_decide_would_and_one_fewer_would_not() -> None:
    found, region = of_rounds([0.9, 1.3, 1.0, 1.4]), Region(low=1.0)
    needed = rounds_needed(region, found)
    assert needed is not None and needed > 4
    assert region.p(found.with_rounds(needed)) <= 0.05 < region.p(found.with_rounds(needed - 1))


def test_no_number_of_rounds_decides_what_an_own_error_hides() -> None:
    assert rounds_needed(Region(low=1.0), Estimate(1.01, 0.001, 4, 5, own=0.02)) is None
    assert math.isclose(Estimate(1.01, 0.0, 4, 5, own=0.02).interval(0.95)[1], 1.01 + 1.959964 * 0.02, rel_tol=1e-6)


def test_p_values_are_adjusted_as_holm_does_it() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_an_adjusted_p_value_is_at_most_1_and_a_single_one_stays() -> None:
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
