"""The steps of a measurement window: how precisely their mean is known, and whether they were steady."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Steps = NDArray[np.float64]

CONFIDENCE = 0.95
MAX_BATCHES = 20
MIN_STEPS = 8
"""Of fewer steps nothing is said about their spread."""
UNSTEADY = 0.02
"""Change between the halves of a window, relative, below which nobody is warned."""


def relative_half_width(steps: Steps) -> float | None:
    """Half-width of the 95 % interval of the mean step, over that mean; None of too few steps.

    It knows of this window only: spells longer than the window are not in it.
    """
    if len(steps) < MIN_STEPS or not steps.mean() > 0:
        return None
    variance, freedom = long_run_variance(steps)
    return quantile(freedom) * math.sqrt(variance / len(steps)) / float(steps.mean())


def change_of_halves(steps: Steps) -> tuple[float, float] | None:
    """Mean of the window's second half over that of its first, minus 1, and the 95 % half-width of that ratio.

    None of too few steps, and where the window was steady: no change beyond that half-width, or less than UNSTEADY.
    """
    halves = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    first, second = (relative_half_width(half) for half in halves)
    if first is None or second is None:
        return None
    ratio = float(halves[1].mean() / halves[0].mean())
    change, half_width = ratio - 1, ratio * math.hypot(first, second)
    return None if abs(change) <= max(UNSTEADY, half_width) else (change, half_width)


def long_run_variance(steps: Steps) -> tuple[float, int]:
    """Variance of the sum of n successive steps, over n, for large n; and its degrees of freedom.

    Steps that follow each other are alike, so that the spread of single steps says too little about the spread of their
    sum. Two estimates, of which the larger is taken, because from few steps either is often too small: batch means (Law
    and Kelton, "Simulation Modeling and Analysis", 9.5.3), whose number also gives the degrees of freedom, and a
    first-order autoregressive process fitted to the steps.
    """
    count = min(MAX_BATCHES, max(4, len(steps) // 10))
    size = len(steps) // count
    means = steps[len(steps) - count * size :].reshape(count, size).mean(axis=1)
    of_batches = size * float(means.var(ddof=1)) * _inflation(_correlation(means), 0.8)
    # The first-order correlation comes out too small by (1 + 3 r) / n (Kendall, Biometrika 41, 1954).
    alike = _correlation(steps)
    alike += (1 + 3 * alike) / len(steps)
    of_steps = float(steps.var(ddof=1)) * _inflation(alike, 0.9)
    return max(of_batches, of_steps), count - 1


def quantile(freedom: int) -> float:
    """Of Student's t: half the interval that has CONFIDENCE, in standard errors."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _correlation(values: Steps) -> float:
    """Of each value with the next; 0 where they do not vary."""
    away = values - values.mean()
    total = float((away**2).sum())
    return float((away[1:] * away[:-1]).sum()) / total if total > 0 else 0.0


def _inflation(correlation: float, most: float) -> float:
    """(1 + r) / (1 - r): by how much neighbours that are alike raise the variance of a sum; r is taken as `most` at most."""
    r = min(most, max(0.0, correlation))
    return (1 + r) / (1 - r)
