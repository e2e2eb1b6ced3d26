"""Change points: found where they are, and not where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_ind

from scalestudy.analysis.change_points import LEVEL, _between, changes, strongest


def test_a_step_is_found_at_its_place_with_its_size() -> None:
    change = strongest([0.00, 0.01, -0.01, 0.00, -0.10, -0.11, -0.10, -0.09])
    assert change is not None
    assert change.start == 4
    assert change.shift == pytest.approx(-0.10)
    assert change.p <= 0.01


def test_two_steps_are_both_found() -> None:
    series = [0.0, 0.01, -0.01, 0.0, 0.01, -0.1, -0.11, -0.1, -0.09, -0.1, 0.05, 0.06, 0.05, 0.04, 0.05]
    assert [change.start for change in changes(series, strongest(series))] == [5, 10]


@pytest.mark.parametrize("n", [4, 6, 12])
def test_without_a_change_at_most_5_percent_of_series_have_one(n: int) -> None:
    rng = np.random.default_rng(n)
    found = [strongest(series) for series in rng.normal(3.0, 0.2, (1000, n)).tolist()]
    # 50 expected; the standard deviation is 6.9
    assert 30 <= sum(change is not None and change.p <= LEVEL for change in found) <= 70


@pytest.mark.parametrize("series", [[], [1.0, 2.0, 3.0], [1.0] * 8, [0.1 + 0.2, 0.3, 0.3, 0.3]])
def test_series_that_are_short_or_equal_have_no_change(series: list[float]) -> None:
    assert strongest(series) is None
    assert changes(series, strongest(series)) == []


def test_the_statistic_is_the_largest_t_of_two_samples() -> None:
    series = np.array([1.0, 1.2, 0.9, 1.1, 1.6, 1.5, 1.7])
    largest = max(abs(ttest_ind(series[:split], series[split:]).statistic) for split in range(1, 7))
    share = _between(series[None, :]).max()
    assert (5 * share / (1 - share)) ** 0.5 == pytest.approx(largest)
