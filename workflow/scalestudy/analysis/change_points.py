"""Where the mean of a short series changes: Worsley's likelihood-ratio test, and binary segmentation.

The test takes the largest |t| between the values left and right of any place (K. J. Worsley, On the likelihood ratio
test for a shift in location of normal populations, JASA 74 (1979) 365). Its spread is that of the series itself, here
what differs from night to night, and not that of repeats within a night, which is smaller. For independent normal
values without a change the distribution depends on their number alone and is simulated. It needs four values; a
permutation test could not reach 5 % with fewer than eight. What is found divides the series, and each part is tested
again (A. J. Scott and M. Knott, A cluster analysis method for grouping means, Biometrics 30 (1974) 507).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST = 4
SIMULATIONS = 20_000
SEED = 1979
LEVEL = 0.05
EQUAL = 1e-9
"""Values no further apart than this differ by rounding alone: they are logarithms of measured numbers."""


@dataclass(frozen=True)
class Shift:
    """The mean of the values from index `start` on differs from that of those before by `shift`; `p` as tested."""

    start: int
    shift: float
    p: float


def strongest(values: Sequence[float]) -> Shift | None:
    """The most likely change, whether significant or not; None for fewer than four values, or where all are equal."""
    if len(values) < FEWEST:
        return None
    series = np.asarray(values, dtype=float)
    if np.ptp(series) <= EQUAL:
        return None
    shares = _between(series[None, :])[0]
    split = int(shares.argmax())
    start = split + 1
    shift = float(series[start:].mean() - series[:start].mean())
    null = _null(len(series))
    beyond = len(null) - int(np.searchsorted(null, shares[split] * (1 - 1e-12)))
    return Shift(start, shift, (1 + beyond) / (1 + len(null)))


def changes(values: Sequence[float], first: Shift | None) -> list[Shift]:
    """All changes of a series whose strongest, `first`, is significant, in their order; none where it is not given."""
    if first is None:
        return []
    found = [first]
    for begin, part in ((0, values[: first.start]), (first.start, values[first.start :])):
        next_ = strongest(part)
        if next_ is not None and next_.p <= LEVEL:
            found += [Shift(begin + each.start, each.shift, each.p) for each in changes(part, next_)]
    return sorted(found, key=lambda change: change.start)


def _between(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each row and place, the share of the sum of squares that is between both sides: t² = (n - 2)·share/(1 - share).

    `series` is [rows, n]; returns [rows, n - 1].
    """
    centred = series - series.mean(axis=1, keepdims=True)
    n = series.shape[1]
    left = np.cumsum(centred, axis=1)[:, :-1]
    places = np.arange(1, n)
    found: NDArray[np.float64] = left**2 * n / (places * (n - places)) / (centred**2).sum(axis=1, keepdims=True)
    return found


@functools.cache
def _null(n: int) -> NDArray[np.float64]:
    """The largest share of series of n independent normal values, simulated, sorted."""
    draws = np.random.default_rng(SEED).standard_normal((SIMULATIONS, n))
    return np.sort(_between(draws).max(axis=1))
