"""Spread of the sum of many uncertain jobs: drawn at random from each job's own interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DRAWS, SEED = 1000, 0
PERCENTILES = (10, 50, 90)
Z95 = 1.6449
"""The 95th percentile of the standard normal distribution."""
COMMON = {"repeats": 0.0, "neighbours": 0.5, "published": 0.8, "flops": 0.8, "rates": 0.8}
"""Share of the variance that all jobs of a kind of expectation have in common: what is taken from one published table is
too high for all of them or too low for all. Assumptions; independent errors would make a sum seem far too certain."""
UNKNOWN = "unknown"
Draws = npt.NDArray[np.float64]


def drawn(intervals: Sequence[tuple[str, float, float]]) -> Draws:
    """Seconds [draws, jobs] from each job's kind of expectation, 5th and 95th percentile.

    Log-normal between the two; uniform where there is no low end; nothing where the kind is unknown. The seed is fixed:
    the same plan has the same numbers.
    """
    random = np.random.default_rng(SEED)
    common = {kind: random.standard_normal(DRAWS) for kind in COMMON}
    found = np.zeros((DRAWS, len(intervals)))
    for column, (kind, low, high) in enumerate(intervals):
        if high <= 0 or kind == UNKNOWN:
            continue
        if low <= 0:
            found[:, column] = random.uniform(max(0.0, low), high, DRAWS)
            continue
        share = COMMON[kind]
        z = np.sqrt(share) * common[kind] + np.sqrt(1 - share) * random.standard_normal(DRAWS)
        middle, width = np.log(low * high) / 2, np.log(high / low) / (2 * Z95)
        found[:, column] = np.exp(middle + width * z)
    return found


def percentiles(values: Draws) -> tuple[float, float, float]:
    """The 10th, 50th and 90th."""
    low, middle, high = np.percentile(values, PERCENTILES)
    return float(low), float(middle), float(high)
