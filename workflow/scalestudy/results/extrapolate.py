"""From the first part of a training to the time of all of it, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalestudy.measure.window import LEAST_STEPS, long_run_variance, quantile

SPREAD_OF_FEW = 0.2
"""Standard deviation, relative, that a cost is taken to have when it was seen fewer than three times."""
LEAST_RELATIVE = 0.02
"""Half-width, relative, that no interval goes below: the variation of a machine over hours does not show in minutes.
Steady runs on a shared machine deviated by up to 1.8 % from their first tenth."""


@dataclass(frozen=True)
class Estimate:
    """Seconds; `low` and `high` hold the true value with a confidence of 95 %, None where too few steps were seen."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the interval's width."""
        return None if self.high is None or self.low is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Cost:
    """What is done between steps: the seconds that it took each time, and how often it is still to come."""

    seconds: Sequence[float]
    to_come: float


def training_time(done_s: float, steps: NDArray[np.float64], steps_to_come: int, costs: Sequence[Cost]) -> Estimate:
    """Seconds of a whole training of which `done_s` are done.

    `steps` are the seconds of consecutive steps after warm-up, with what is between two of them (a later attempt at a
    run continues where the earlier ended). What is to come is `steps_to_come` times their mean, and each cost's mean times
    `to_come`. The interval is one of prediction: the mean is known from few, and the rest will vary by itself.
    """
    n = len(steps)
    mean = float(np.mean(steps)) if n else 0.0
    value = done_s + steps_to_come * mean
    halves = []
    if n >= LEAST_STEPS and steps_to_come > 0:
        long_run, freedom = long_run_variance(steps)
        deviation = math.sqrt(long_run * steps_to_come * (1 + steps_to_come / n))
        halves.append(quantile(freedom) * deviation)
    for cost in costs:
        if cost.seconds and cost.to_come > 0:
            value += cost.to_come * float(np.mean(cost.seconds))
            halves.append(_half_of_cost(cost))
    if n < LEAST_STEPS:
        return Estimate(value)
    least = LEAST_RELATIVE * (value - done_s)
    half = max(least, math.sqrt(math.fsum(half**2 for half in halves)))
    return Estimate(value, max(done_s, value - half), value + half)


def _half_of_cost(cost: Cost) -> float:
    """Half the interval of all that is to come of one cost."""
    k, mean = len(cost.seconds), float(np.mean(cost.seconds))
    seen = float(np.std(cost.seconds, ddof=1)) if k > 1 else 0.0
    spread, freedom = (seen, k - 1) if k >= 3 else (max(seen, SPREAD_OF_FEW * mean), 1000)
    return quantile(freedom) * spread * math.sqrt(cost.to_come * (1 + cost.to_come / k))
