"""As many digits as the interval bears."""

from __future__ import annotations

import pytest

from scalestudy.analysis.rounding import with_interval
from scalestudy.spec.labels import number


@pytest.mark.parametrize(
    ("mean", "half", "written"),
    [
        (1234.567, 23.0, "1,235 ± 23"),
        (1234.567, 234.0, "1,230 ± 230"),
        (0.8, 0.0012, "0.8000 ± 0.0012"),
        (0.8, 0.0996, "0.80 ± 0.10"),
        (99.96, 9.96, "100 ± 10"),
        (-0.001, 0.02, "-0.001 ± 0.020"),
    ],
)
def test_a_mean_has_the_places_of_two_digits_of_its_half_width(mean: float, half: float, written: str) -> None:
    assert with_interval(mean, mean - half, mean + half) == written


def test_an_interval_whose_sides_differ_is_written_by_its_ends() -> None:
    assert with_interval(10.0, 5.0, 20.0) == "10.0 [5.0, 20.0]"
    assert with_interval(3.13, 0.66, 15.2) == "3.1 [0.7, 15.2]"


def test_without_an_interval_a_number_has_three_digits() -> None:
    assert with_interval(999.32018, None, None) == "999"
    assert with_interval(0.123456, None, None) == "0.123"
    assert with_interval(5.0, 5.0, 5.0) == "5"


def test_whole_numbers_keep_their_digits() -> None:
    assert number(1234567.0) == "1,234,567"
