"""The decision rule: estimates with intervals and p-values, from the numbers of rounds.

A claim is about the median round, and a round is one number: the ratio of two sides, on logarithms, or their difference. Two
intervals have to agree, Student's of the mean and that of the median by order statistics (Conover, Practical Nonparametric
Statistics, 3rd ed. 1999, section 3.2), which no skew and no second state of the machine can deceive. The interval shown
encloses both, so that it and the p-value decide alike.

`own` is the standard error that all rounds share, such as that of an extrapolation: repeating does not reduce it. Half of
Student's interval is then sqrt((t·se)² + (z·own)²).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import bdtr, bdtrik, ndtr, ndtri, stdtr, stdtrit

ERROR = 0.05
"""Probability of a false decision that a claim may have."""
POWER = 0.8
"""Probability with which the recommended rounds decide, if mean and spread are those found so far."""
MAX_ROUNDS = 1000
MIN_CAMPAIGNS = 3
"""Campaigns from which the next is predicted: how two of them differ says next to nothing of a third."""
MIN_P = 1e-15
FENCE = 1.5
"""Interquartile ranges beyond the quartiles from which on a round lies apart (Tukey, Exploratory Data Analysis, 1977)."""


@dataclass(frozen=True)
class Estimate:
    """What two or more independent rounds say of one number; `rounds` are logarithms if `log`."""

    rounds: tuple[float, ...]
    own: float = 0.0
    log: bool = False
    looks: int = 1
    """How often the claim is judged, at most: each time with this part of the permitted error."""
    of_next: bool = False
    """The number is not the mean, but one more such number: of a few campaigns, the next."""

    @property
    def n(self) -> int:
        """Number of rounds."""
        return len(self.rounds)

    @property
    def value(self) -> float:
        """The median round, in its own unit."""
        return self._back(self.median)

    @property
    def apart(self) -> int:
        """Rounds beyond Tukey's fences: slow or fast ones, of which the median says nothing."""
        low, high = np.quantile(self.rounds, (0.25, 0.75))
        reach = FENCE * (high - low) + 1e-9 * abs(self.mean)
        return sum(not low - reach <= each <= high + reach for each in self.rounds)

    @cached_property
    def median(self) -> float:
        """Median of the rounds, on logarithms if `log`."""
        return float(np.median(self.rounds))

    @cached_property
    def mean(self) -> float:
        """Mean of the rounds, on logarithms if `log`."""
        return math.fsum(self.rounds) / self.n

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the rounds; 0 where they differ by rounding only."""
        squares = math.fsum((each - self.mean) ** 2 for each in self.rounds)
        return 0.0 if squares <= (1e-12 * abs(self.mean)) ** 2 * self.n else math.sqrt(squares / (self.n - 1))

    @property
    def se(self) -> float:
        """Standard error of the mean, or of one more number against it: a mean of n and another number vary by 1 + 1/n."""
        return self.spread * math.sqrt(1 / self.n + self.of_next)

    def student(self, confidence: float) -> tuple[float, float]:
        """Student's interval of the mean, in the number's own unit."""
        half = self._half((1 - confidence) / 2)
        return self._back(self.mean - half), self._back(self.mean + half)

    def interval(self, confidence: float) -> tuple[float, float]:
        """The two-sided interval in the number's own unit, around Student's and that of the median."""
        low, high = self.student(confidence)
        left_out = int(_exceptions(self.n, self.looks))
        rounds = sorted(self.rounds)
        return min(low, self._back(rounds[left_out])), max(high, self._back(rounds[-1 - left_out]))

    def p(self, side: int, limit: float) -> float:
        """One-sided p-value for "the number lies above the limit", with `side` -1 below it.

        Student's, or that of the sign test where too many rounds lie on the other side of the limit.
        """
        end = self.onto(limit)
        against = sum(side * (each - end) <= 0 for each in self.rounds)
        p = self._p_of_mean(side * (self.mean - end))
        return max(p, float(bdtr(against, self.n, 0.5))) if against > _exceptions(self.n, self.looks) else p

    def _p_of_mean(self, distance: float) -> float:
        """Probability of a mean so far beyond a limit, were the limit the true mean."""
        if distance <= 0:
            return 1.0 if distance == 0 else 1 - self._p_of_mean(-distance)
        if math.isinf(distance) or distance >= self._half(MIN_P):
            return MIN_P
        if not self.own:
            return float(stdtr(self.n - 1, -distance / self.se))
        from scipy.optimize import brentq  # takes a fifth of a second, and extrapolated numbers alone need it

        tail = brentq(lambda tail: self._half(math.exp(tail)) - distance, math.log(MIN_P), math.log(0.5))
        return math.exp(tail)

    def _half(self, tail: float) -> float:
        """Half of Student's interval that is wrong with this probability at each end."""
        t = float(stdtrit(self.n - 1, 1 - tail)) if self.spread else 0.0
        z = float(ndtri(1 - tail)) if self.own else 0.0
        return math.hypot(t * self.se, z * self.own)

    def onto(self, limit: float) -> float:
        """A limit on the scale of the rounds."""
        if not self.log:
            return limit
        return math.log(limit) if limit > 0 else -math.inf

    def _back(self, value: float) -> float:
        if not self.log:
            return value
        return math.exp(value) if value < 700 else math.inf


def _exceptions(rounds: int | np.ndarray, looks: int) -> np.ndarray:
    """Rounds that may lie on the other side of a limit that the median is beyond; below five rounds none may."""
    return np.floor(bdtrik(ERROR / looks, np.asarray(rounds, float), 0.5))


@dataclass(frozen=True)
class Region:
    """Where the true number must lie for a claim to hold, between `low` and `high`, and how that is tested.

    `one_sided`: each end by a one-sided test at 5 %, as equivalence is; else the two-sided 95 % interval decides.
    """

    low: float = -math.inf
    high: float = math.inf
    one_sided: bool = False

    def p_inside(self, estimate: Estimate) -> float:
        """The p-value for "it lies in the region": the larger of its ends'."""
        return self._adjusted(max(estimate.p(side, end) for side, end in self._ends), estimate)

    def p_outside(self, estimate: Estimate) -> float:
        """The p-value for "it lies outside": the smaller of its ends'."""
        return self._adjusted(min(estimate.p(-side, end) for side, end in self._ends), estimate)

    @property
    def _ends(self) -> list[tuple[int, float]]:
        return [(side, end) for side, end in ((1, self.low), (-1, self.high)) if math.isfinite(end)]

    def _adjusted(self, p: float, estimate: Estimate) -> float:
        return min(1.0, p * estimate.looks * (1 if self.one_sided else 2))


@dataclass(frozen=True)
class Tested:
    """What the comparisons of one claim say together, and the one of them that decides."""

    holds: bool
    p: float
    deciding: int


def together(region: Region, estimates: Sequence[Estimate]) -> Tested:
    """All comparisons of a claim: it holds if each does, and does not if one does not.

    That all hold has the largest of their p-values (intersection-union test, Berger 1982); that one does not, the smallest
    times their number (Bonferroni).
    """
    inside, outside = [region.p_inside(one) for one in estimates], [region.p_outside(one) for one in estimates]
    holding, against = max(inside), min(1.0, min(outside) * len(estimates))
    if holding <= against:
        return Tested(True, holding, inside.index(holding))
    return Tested(False, against, outside.index(min(outside)))


def rounds_needed(region: Region, estimate: Estimate, error: float = ERROR) -> int | None:
    """The fewest rounds that would decide in 80 % of cases, were mean and spread the true ones; None where over 1,000.

    Student's interval of the mean and the sign test of the median have to reach it, each by itself.
    """
    n = np.arange(estimate.n + 1, MAX_ROUNDS + 1)
    distance = min(abs(estimate.mean - estimate.onto(end)) for end in (region.low, region.high) if math.isfinite(end))
    se = estimate.spread / np.sqrt(n)
    tail = error / estimate.looks / (1 if region.one_sided else 2)
    half = np.hypot(stdtrit(n - 1, 1 - tail) * se, float(ndtri(1 - tail)) * estimate.own)
    beyond = float(ndtr(distance / estimate.spread)) if estimate.spread else 1.0
    by_median = bdtr(_exceptions(n, estimate.looks), n, 1 - beyond) >= POWER
    enough = by_median & (distance - half >= stdtrit(n - 1, POWER) * se)
    return int(n[enough.argmax()]) if enough.any() else None


def holm(ps: Iterable[float]) -> list[float]:
    """p-values adjusted for being judged together, in the order given: in ascending order p·(m - k), never falling, at most 1.

    Compared with alpha, they keep the probability of any false decision below alpha, whatever their dependence
    (Holm, Scand. J. Statist. 6 (1979) 65).
    """
    p_values = list(ps)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = largest
    return adjusted


def own_error(own: Sequence[tuple[float, float, float]], log: bool) -> float:
    """The standard error that numbers share which came with 95 % intervals (low, value, high): the root of the mean square.

    On logarithms, where a lower end is not positive, half the interval is the distance to its upper end.
    """
    halves = [
        (high - low) / 2 if not log else math.log(high / low) / 2 if low > 0 else math.log(high / value)
        for low, value, high in own
    ]
    return math.sqrt(math.fsum(half**2 for half in halves) / len(halves)) / float(ndtri(0.975)) if halves else 0.0
