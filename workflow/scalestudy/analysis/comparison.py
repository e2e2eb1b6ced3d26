"""Whether one set of measurements is slower than another: paired log-ratios, a margin, Holm over configurations.

Pure statistics. The ratio of a configuration is the speed after over the speed before, below 1 where it became slower.
Measurements of the same repeat share seed and round and are paired; the logarithms of their ratios are taken as normal,
so that the interval is Student's t on their mean (Hoefler and Belli, Scientific Benchmarking of Parallel Computing
Systems, SC '15, rules 5 to 7: intervals for ratios, and logarithms for them).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtr, stdtrit

from scalestudy.claims.inference import holm

Verdict = Literal["slower", "same", "faster", "undecided"]

LEVEL = 0.05
"""Probability of a false *slower* or *faster* among all configurations compared together, and of each false *same*."""
MARGIN = 0.03
"""A change of speed up to this is *same*. Equal runs of one rank on a quiet machine spread by 2.9 % (one standard deviation;
tests/unit/test_compare_power.py): a smaller change is within what that machine does by itself."""
FEWEST_PAIRS = 3
"""Two pairs have one degree of freedom, where t is 12.7: they decide nothing."""
MOST_REPEATS = 1000


@dataclass(frozen=True)
class Change:
    """What became of one configuration. `ratio`, `low` and `high` (95 %) are speed after over speed before."""

    verdict: Verdict
    ratio: float | None
    low: float | None
    high: float | None
    n: int
    p: float | None
    """Probability of so large a change if the true one lies within the margin; two-sided."""
    p_holm: float | None
    """The same, adjusted by Holm for all configurations compared together: at most 0.05 decides slower and faster."""
    repeats_needed: int | None
    """Where undecided: pairs that would decide it, if mean and spread stay as they are; None where over 1,000."""
    reason: str = ""


def log_ratios(before: Mapping[int, float], after: Mapping[int, float]) -> list[float]:
    """ln(after / before) of each repeat that both have; both are speeds (larger is faster) by repeat."""
    return [
        math.log(after[repeat] / before[repeat])
        for repeat in sorted(before.keys() & after.keys())
        if _is_speed(before[repeat]) and _is_speed(after[repeat])
    ]


def _is_speed(value: float) -> bool:
    return math.isfinite(value) and value > 0


def judged(ratios: Sequence[Sequence[float]], margin: float = MARGIN) -> list[Change]:
    """The verdict on each configuration, from the log-ratios of its pairs; `margin` is relative, 0.03 for 3 %.

    *slower* and *faster*: the mean lies beyond ln(1 + margin), by a t test at 5 % over all configurations together
    (Holm, Scand. J. Statist. 6 (1979) 65). Holm and not a false discovery rate: one false alarm stops a release, and
    its bound holds for configurations that share rounds and therefore noise. *same*: the 90 % interval lies inside
    the margin (two one-sided tests at 5 %; Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657); that all are the
    same is claimed only if each is, which needs no adjustment. Anything else is *undecided*.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"a margin is a share of the speed, not {margin}")
    limit = math.log1p(margin)
    tests = [_p_beyond(values, limit) for values in ratios]
    adjusted = holm([p for p in tests if p is not None])
    together = len(adjusted)
    return [
        _change(values, limit, p, None if p is None else adjusted.pop(0), together)
        for values, p in zip(ratios, tests, strict=True)
    ]


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Of a gate: 1 where any is slower, else 3 where any is undecided, else 0."""
    return 1 if "slower" in verdicts else 3 if "undecided" in verdicts else 0


def geometric_mean(changes: Sequence[Change]) -> float | None:
    """Of the ratios of all configurations; it says whether they moved together, and decides nothing."""
    found = [math.log(change.ratio) for change in changes if change.ratio is not None]
    return math.exp(math.fsum(found) / len(found)) if found else None


def _change(values: Sequence[float], limit: float, p: float | None, p_holm: float | None, together: int) -> Change:
    n = len(values)
    if n == 0:
        return Change("undecided", None, None, None, 0, None, None, None, "no repeat is valid in both")
    mean, error = _mean_and_error(values)
    if p is None or p_holm is None:
        pairs = "1 pair" if n == 1 else f"{n} pairs"
        reason = f"{pairs} of {FEWEST_PAIRS} that an interval needs"
        return Change("undecided", math.exp(mean), None, None, n, None, None, None, reason)
    half = _t(0.975, n) * error
    inside = abs(mean) + _t(0.95, n) * error <= limit
    verdict: Verdict = "undecided"
    reason = ""
    if p_holm <= LEVEL:
        verdict = "slower" if mean < 0 else "faster"
    elif inside:
        verdict = "same"
    elif p <= LEVEL:
        reason = "beyond the margin by itself, not among so many configurations"
    else:
        reason = "the interval is too wide" if abs(mean) + half > limit else "too close to the margin"
    needed = _repeats_needed(mean, error * math.sqrt(n), n, limit, together) if verdict == "undecided" else None
    return Change(
        verdict, math.exp(mean), math.exp(mean - half), math.exp(mean + half), n, p, p_holm, needed, reason
    )  # fmt: skip


def _p_beyond(values: Sequence[float], limit: float) -> float | None:
    """Two-sided p of the mean lying beyond ± `limit`; None for too few values."""
    if len(values) < FEWEST_PAIRS:
        return None
    mean, error = _mean_and_error(values)
    beyond = abs(mean) - limit
    if error == 0:
        return 0.0 if beyond > 0 else 1.0
    return min(1.0, 2 * float(stdtr(len(values) - 1, -beyond / error)))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; of a single value the error is infinite."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, math.inf
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)


def _t(share: float, n: int) -> float:
    return float(stdtrit(n - 1, share))


def _repeats_needed(mean: float, deviation: float, n: int, limit: float, together: int) -> int | None:
    """More than `n` pairs after which a mean that stays is decided: inside the margin by its 90 % interval, outside by
    the test at 5 % divided by all configurations, which Holm's never exceeds."""
    gap = abs(abs(mean) - limit)
    share = 1 - LEVEL / together / 2 if abs(mean) > limit else 1 - LEVEL

    def decides(more: int) -> bool:
        return _t(share, more) * deviation / math.sqrt(more) <= gap

    counts = range(n + 1, MOST_REPEATS + 1)
    found = bisect_left(counts, True, key=decides)  # from one count on, all decide
    return counts[found] if found < len(counts) else None
