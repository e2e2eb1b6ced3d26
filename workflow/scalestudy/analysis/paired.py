"""What pairs of runs say about a difference, judged against a margin, and many such judgements together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtr, stdtrit

from scalestudy.analysis.stats import CONFIDENCE, FEWEST
from scalestudy.claims.inference import holm

ALPHA = 0.05

Verdict = Literal["more", "less", "same", "undecided"]


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of n pairs with its 95 % interval, and what is most likely true of it.

    That is `more` or `less` (than nothing, by more than the margin) or `same` (within the margin); `p` is the p-value of
    its contrary. Whether it counts as shown, `judged` says.
    """

    mean: float
    low: float
    high: float
    n: int
    p: float
    likely: Verdict


def compare(differences: Sequence[float], margin: float) -> PairedDifference | None:
    """Judge the mean of paired differences against ±`margin`; None below three pairs.

    Two tests on Student's t, of hypotheses of which exactly one is true, so that no error is spent on choosing: beyond
    the margin (two-sided at 95 %), and within it (two one-sided tests at 95 %, Schuirmann 1987: the 90 % interval lies
    inside the margin). The smaller p decides which of them is reported.
    """
    n = len(differences)
    if n < FEWEST:
        return None
    mean = math.fsum(differences) / n
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (n - 1) / n)
    # Differences that are all alike have no spread: then every test is decided by the mean.
    error = max(error, 1e-12 * max(1.0, abs(mean)))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error

    def above(threshold: float) -> float:
        return float(stdtr(n - 1, -(mean - threshold) / error))

    more, less = above(margin), 1 - above(-margin)
    beyond = min(1.0, 2 * min(more, less))
    within = max(1 - more, 1 - less)
    likely: Verdict = "same" if within < beyond else ("more" if more < less else "less")
    return PairedDifference(mean, mean - half, mean + half, n, min(beyond, within), likely)


def judged(comparisons: Sequence[PairedDifference]) -> list[tuple[Verdict, float]]:
    """For each of several comparisons that are made together its verdict and its p, adjusted by Holm's method."""
    adjusted = holm([comparison.p for comparison in comparisons])
    return [
        (comparison.likely if p <= ALPHA else "undecided", p)
        for comparison, p in zip(comparisons, adjusted, strict=True)
    ]
