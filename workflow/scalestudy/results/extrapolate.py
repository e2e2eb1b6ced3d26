"""From the first part of a training to the time of all of it, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalestudy.measure.window import MIN_STEPS, long_run_variance, quantile
from scalestudy.spec.columns import MAX_TESTED_FACTOR

MANY = 1000
"""Degrees of freedom of what is not estimated from the run: as good as infinitely many."""
MAX_RELATIVE = 20.0
"""Beyond e^20 an interval says only that nothing is known."""
SPREAD_OF_FEW = 0.2
"""Standard deviation, relative, that a cost is taken to have when it was seen fewer than three times."""
DRIFT, DRIFT_DISTURBED = 0.01, 0.25
"""Relative standard deviation that each doubling of the time adds and of which a window shows nothing: a machine varies
over minutes and hours too. Noise of 1/f has equal variance in each octave, and from window to whole there are log2 of the
factor. The second is for windows during which other processes took the cores. Both are chosen so that 95 % of the intervals
hold on recordings: 40 runs on a quiet machine (tests/soak/extrapolation.py), and half of the workloads that ran on two
cores shared with many other processes (tests/data/long_runs.npz), of which the other half is what the choice is judged on."""
SEEN_AGAIN = 0.5
"""Of the variance of the window's mean, the share that each doubling adds: what varies within a window varies at
longer times too. Chosen on the same recordings."""


@dataclass(frozen=True)
class ExtrapolatedTime:
    """Seconds; `low` and `high` hold the true value with a confidence of 95 %.

    None where too few steps were seen, or the whole is more than MAX_TESTED_FACTOR times as long as the window.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RecurringCost:
    """Recurring work between steps: its seconds each time, and how often it is still to come."""

    seconds: Sequence[float]
    to_come: float


def training_time(
    done_s: float,
    steps: NDArray[np.float64],
    steps_to_come: int,
    costs: Sequence[RecurringCost],
    disturbed: bool = False,
) -> ExtrapolatedTime:
    """Seconds of a whole training of which `done_s` are done.

    `steps` are the seconds of consecutive steps after warm-up, with the time between two of them (a later attempt at a
    run continues where the earlier ended). The rest is `steps_to_come` times their mean, and each cost's mean times
    `to_come`. The interval is one of prediction: the mean is known from few, the rest will vary by itself, and the more
    so the longer it is compared with the window. It is symmetric in the logarithm of the rest. `disturbed`: other
    processes took much of the cores during the window, so that it does not show their later share.
    """
    n = len(steps)
    mean = float(np.mean(steps)) if n else 0.0
    of_steps = steps_to_come * mean
    to_come, halves = of_steps, []
    if n >= MIN_STEPS and of_steps > 0:
        halves.append(of_steps * _relative_half(steps, steps_to_come, DRIFT_DISTURBED if disturbed else DRIFT))
    for cost in costs:
        if cost.seconds and cost.to_come > 0:
            to_come += cost.to_come * float(np.mean(cost.seconds))
            halves.append(_half_of_cost(cost))
    value = done_s + to_come
    if n < MIN_STEPS or to_come <= 0 or steps_to_come > MAX_TESTED_FACTOR * n:
        return ExtrapolatedTime(value)
    relative = min(MAX_RELATIVE, math.sqrt(math.fsum(half**2 for half in halves)) / to_come)
    return ExtrapolatedTime(value, done_s + to_come * math.exp(-relative), done_s + to_come * math.exp(relative))


def _relative_half(steps: NDArray[np.float64], to_come: int, drift: float) -> float:
    """Half the interval of the logarithm of the mean of the steps to come."""
    n, doublings = len(steps), math.log2(1 + to_come / len(steps))
    long_run, freedom = long_run_variance(steps)
    seen = long_run * (1 / to_come + 1 / n) / float(np.mean(steps)) ** 2
    shown = quantile(freedom) ** 2 * seen * (1 + SEEN_AGAIN * doublings)
    return math.sqrt(shown + quantile(MANY) ** 2 * drift**2 * doublings)


def _half_of_cost(cost: RecurringCost) -> float:
    """Half the interval of all that is to come of one cost."""
    k, mean = len(cost.seconds), float(np.mean(cost.seconds))
    seen = float(np.std(cost.seconds, ddof=1)) if k > 1 else 0.0
    spread, freedom = (seen, k - 1) if k >= 3 else (max(seen, SPREAD_OF_FEW * mean), MANY)
    return quantile(freedom) * spread * math.sqrt(cost.to_come * (1 + cost.to_come / k))
