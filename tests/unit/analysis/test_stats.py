"""Means and intervals against numbers worked out by hand, and their coverage by simulation."""

from __future__ import annotations

import math

import pytest

from scalestudy.analysis.stats import interval, interval_of, with_interval
from scalestudy.spec.columns import on_logarithms


def test_three_repeats_give_the_t_interval_of_the_mean() -> None:
    found = interval([9.0, 10.0, 11.0])

    # s = 1, t(0.975, 2) = 4.302653, half width 4.302653 / sqrt(3) = 2.484138
    assert (found.mean, found.n) == (10.0, 3)
    assert found.low == pytest.approx(7.515862, abs=1e-6)
    assert found.high == pytest.approx(12.484138, abs=1e-6)


def test_on_logarithms_the_mean_is_geometric_and_the_interval_lies_wider_above() -> None:
    found = interval([1.0, math.e, math.e**2], log=True)

    # Logarithms 0, 1, 2: mean 1, half width 2.484138.
    assert found.mean == pytest.approx(math.e)
    assert math.log(found.low) == pytest.approx(1 - 2.484138, abs=1e-6)
    assert math.log(found.high) == pytest.approx(1 + 2.484138, abs=1e-6)


def test_fewer_than_three_repeats_have_a_mean_and_no_interval() -> None:
    two, one = interval([1.0, 3.0]), interval([5.0, math.nan])
    assert (two.mean, two.low, two.high) == (2.0, None, None)
    assert (one.mean, one.n, one.low) == (5.0, 1, None)
    assert interval([math.nan]) is None


def test_times_rates_and_sizes_are_averaged_on_logarithms_and_shares_are_not() -> None:
    positive = ("training_time_s", "throughput_samples_per_s", "dataset_bytes", "memory_mib", "efficiency")
    assert all(on_logarithms(column) for column in positive)
    assert not any(
        on_logarithms(column) for column in ("accuracy", "data_stall", "loss", "staleness", "read_bytes", "no_such")
    )


def extrapolated(*runs: tuple[float, float, float]) -> list[dict[str, float]]:
    return [
        {"training_time_s": value, "training_time_s_low": low, "training_time_s_high": high}
        for value, low, high in runs
    ]


def test_spread_and_own_interval_add_up_in_squares() -> None:
    runs = extrapolated(*[(math.exp(value), math.exp(value - 0.3), math.exp(value + 0.3)) for value in (-0.1, 0, 0.1)])
    found = interval_of(runs, "training_time_s")

    # t-half = 0.1 · 2.484138
    assert math.log(found.high) == pytest.approx(math.hypot(0.2484138, 0.3), abs=1e-6)


def test_a_run_without_an_error_of_its_own_counts_with_none() -> None:
    runs = [
        {"efficiency": 1.0, "efficiency_low": math.exp(-0.3), "efficiency_high": math.exp(0.3)},
        {"efficiency": 1.0},
    ]
    found = interval_of([*runs, *runs], "efficiency")
    assert math.log(found.high) == pytest.approx(0.3 / math.sqrt(2))


def test_repeats_tell_no_interval_of_what_is_extrapolated_beyond_the_tested_factor() -> None:
    tested, beyond = (
        [{"training_time_s": 10.0 + n, "extrapolation_factor": x} for n in range(3)] for x in (999.0, 2e4)
    )
    found = interval_of(beyond, "training_time_s")
    assert found is not None and (found.mean, found.low, found.high) == (pytest.approx(10.97, abs=0.01), None, None)
    known = interval_of(tested, "training_time_s")
    assert known is not None and known.low is not None
    rate = interval_of([{**row, "step_time_s": 0.1 + row["training_time_s"] / 1e4} for row in beyond], "step_time_s")
    assert rate is not None and rate.low is not None


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
