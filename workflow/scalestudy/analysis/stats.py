"""Mean, interval and drift: what repeats say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy.special import stdtrit

CONFIDENCE = 0.95
DRIFT_LIMIT = 0.05


@dataclass(frozen=True)
class Interval:
    """Mean of n repeats and its 95 % interval; of two repeats their range, of one nothing (`low`, `high` None)."""

    mean: float
    low: float | None
    high: float | None
    n: int
    least: float
    most: float

    @property
    def half_width(self) -> float | None:
        """Half the interval's width."""
        return None if self.high is None else self.high - self.mean


def interval(values: Sequence[float]) -> Interval | None:
    """Mean and Student's t interval of the finite `values`: mean ± t(0.975, n - 1)·s/√n. None where there is none.

    With one degree of freedom t is 12.7: such an interval says only that two are few. Their range is given instead.
    """
    finite = [float(value) for value in values if math.isfinite(value)]
    n = len(finite)
    if n == 0:
        return None
    mean = math.fsum(finite) / n
    if n == 1:
        return Interval(mean, None, None, 1, mean, mean)
    if n == 2:
        return Interval(mean, min(finite), max(finite), 2, min(finite), max(finite))
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (n - 1))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, min(finite), max(finite))


def interval_of(rows: Sequence[Mapping[str, Any]], column: str) -> Interval | None:
    """Mean and interval of a column over runs; of a single run the interval that came with its number, if one did.

    An extrapolated number comes with one, in `<column>_low` and `<column>_high`.
    """
    found = interval([row[column] for row in rows if row.get(column) is not None])
    if found is None or found.n > 1:
        return found
    (row,) = (row for row in rows if row.get(column) is not None and math.isfinite(row[column]))
    low, high = (row.get(f"{column}_{end}") for end in ("low", "high"))
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return found
    return replace(found, low=float(low), high=float(high))


def drift(rounds: Sequence[float]) -> float | None:
    """Relative spread of the first configuration's throughput over the first, middle and last round.

    `rounds` has its throughput in each round, NaN where there is none. None where fewer than two of the three are there.
    """
    picked = [rounds[index] for index in sorted({0, len(rounds) // 2, len(rounds) - 1})] if rounds else []
    finite = [value for value in picked if math.isfinite(value)]
    if len(finite) < 2:
        return None
    return (max(finite) - min(finite)) / (math.fsum(finite) / len(finite))
