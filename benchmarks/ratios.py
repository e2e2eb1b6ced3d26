"""Paired ratios of two sides, with an interval that knows which of them are independent, and what they say of a limit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalestudy.analysis.stats import interval

Verdict = Literal["holds", "MISSED", "undecided"]


@dataclass(frozen=True)
class Estimate:
    """A mean over independent sets, and its 95 % interval: infinitely wide below three sets."""

    value: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        """Half of the interval over the value."""
        return (self.high - self.low) / 2 / self.value

    def at_most(self, limit: float) -> Verdict:
        """Whether the value lies below a limit: only where all of the interval does."""
        return "holds" if self.high <= limit else "MISSED" if self.low > limit else "undecided"

    def at_least(self, limit: float) -> Verdict:
        """Whether the value lies above a limit: only where all of the interval does."""
        return "holds" if self.low >= limit else "MISSED" if self.high < limit else "undecided"


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of independent values, with Student's interval."""
    found = interval(values)
    assert found is not None
    low, high = (-math.inf, math.inf) if found.low is None or found.high is None else (found.low, found.high)
    return Estimate(found.mean, low, high, found.n)


def ratio_of(ratios: Sequence[float]) -> Estimate:
    """The geometric mean of independent ratios: `mean_of` their logarithms."""
    found = mean_of([math.log(ratio) for ratio in ratios])
    high = math.exp(found.high) if found.high < math.inf else math.inf
    return Estimate(math.exp(found.value), math.exp(found.low), high, found.count)


def ratio_of_sets(sets: Sequence[Sequence[float]]) -> Estimate:
    """Ratios that were taken in sets, such as the alternations of one set of processes.

    Sets differ more than what is within them, so that only sets count as independent: `ratio_of` their medians.
    """
    return ratio_of([statistics.median(pairs) for pairs in sets])
