"""Mean and interval of repeats, their limits, and as many of their digits as the interval bears."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.claims.inference import Estimate, own_error
from scalestudy.claims.model import MIN_REPEATS
from scalestudy.spec.columns import extrapolated_too_far, is_number, on_logarithms
from scalestudy.spec.labels import decimals_of, fixed, number

CONFIDENCE = 0.95
CENSORED = "censored"
"""Kind of a number of which a run says only that it is larger than `<column>_low`."""
SYMMETRIC = 1.25
"""An interval is written as ± where its two sides differ by less than this factor."""


@dataclass(frozen=True)
class Interval:
    """Mean of n repeats and its 95 % interval; below three repeats there is none (`low`, `high` None).

    A mean on logarithms is the geometric one, and its interval is not symmetric.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


def interval(
    values: Sequence[float], log: bool = False, own: Sequence[tuple[float, float, float]] = ()
) -> Interval | None:
    """Mean and 95 % interval of the finite `values`; None where there is none.

    The interval is Student's: mean ± t(0.975, n - 1)·s/√n, with `log` of the logarithms, taken back afterwards. `log`
    is ignored where a value is 0 or below.

    `own` are the intervals (low, value, high) that single values came with, as extrapolated ones do. Errors of
    extrapolation are the same for all repeats of a configuration (they have the same window and the same steps to come), so
    no number of repeats averages it out: half² = t-half² + mean of own half².
    """
    finite = [float(value) for value in values if math.isfinite(value)]
    n = len(finite)
    if n == 0:
        return None
    log = log and min(finite) > 0
    estimate = Estimate(tuple(math.log(value) if log else value for value in finite), own_error(own, log), log)
    # Of one value the mean is that value, to the last digit.
    mean = finite[0] if n == 1 else math.exp(estimate.mean) if log else estimate.mean
    low, high = estimate.student(CONFIDENCE) if n >= MIN_REPEATS else (None, None)
    return Interval(mean, low, high, n)


def interval_of(rows: Sequence[Mapping[str, Any]], column: str) -> Interval | None:
    """Mean and interval of a column over runs, on logarithms where the column is positive by its nature.

    A number that was extrapolated comes with an interval of its own, in `<column>_low` and `<column>_high`; beyond the
    tested factor there is none, and repeats do not tell it either. Where a run's number is censored there is no mean: that of the other runs
    would be one of a selection.
    """
    if any(row.get(f"{column}_kind") == CENSORED for row in rows):
        return None
    numbered_rows = [row for row in rows if is_number(row.get(column))]
    own = []
    for row in numbered_rows:
        low, value, high = row.get(f"{column}_low"), float(row[column]), row.get(f"{column}_high")
        # A run without an error of its own counts with none in their mean.
        own.append((low, value, high) if is_number(low) and is_number(high) else (value, value, value))
    mean = interval([value for _, value, _ in own], on_logarithms(column), own)
    unknown = any(extrapolated_too_far(row, column) for row in numbered_rows)
    return replace(mean, low=None, high=None) if mean and unknown else mean


def own_half_width(row: Mapping[str, Any], column: str) -> float | None:
    """Half the interval that a run's number came with, as a share of the number; None where it came with none."""
    value, low, high = (row.get(f"{column}{end}") for end in ("", "_low", "_high"))
    if not (is_number(value) and is_number(low) and is_number(high)) or not value:
        return None
    return (float(high) - float(low)) / 2 / abs(float(value))


def with_interval(mean: float, low: float | None, high: float | None, factor: float = 1.0) -> str:
    """`6.80 ± 0.36` to two significant digits of the half-width, or `6.8 [6.1, 8.2]` where the sides differ: of the lesser.

    All are divided by `factor`. Without an interval, or with one that has no width: three significant digits.
    """
    mean /= factor
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return number(mean)
    low, high = low / factor, high / factor
    below, above = mean - low, high - mean
    half = max(below, above)
    if half <= abs(mean) * 1e-6:
        return number(mean)
    lesser = min(below, above)
    if half > SYMMETRIC * lesser > 0:
        decimals = decimals_of(lesser)
        return f"{fixed(mean, decimals)} [{fixed(low, decimals)}, {fixed(high, decimals)}]"
    decimals = decimals_of(half)
    return f"{fixed(mean, decimals)} ± {fixed(half, decimals)}"
