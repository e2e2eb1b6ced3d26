"""Whether measurements are slower than others: a margin, and Holm over configurations.

The ratio of a configuration is the speed after over the speed before, below 1 where it became slower. The unit of variation, and so
the coverage of an interval, is the caller's: rounds of one campaign, or campaigns (Kalibera and Jones, Rigorous Benchmarking in
Reasonable Time, ISMM '13: repeat at the level that varies).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scalestudy.analysis.stats import FEWEST
from scalestudy.claims.inference import ERROR, MIN_CAMPAIGNS, Estimate, Region, holm, rounds_needed

Verdict = Literal["slower", "same", "faster", "undecided"]

MARGIN = 0.03
"""A change of speed up to this is *same*. Equal runs of one rank on a quiet machine spread by 2.9 % (one standard deviation;
tests/data/repeats_quiet.json): a smaller change is within what that machine does by itself."""


@dataclass(frozen=True)
class Change:
    """Change of one configuration. `ratio`, `low` and `high` (95 %) are speed after over speed before."""

    verdict: Verdict = "undecided"
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    p: float | None = None
    """Probability of so large a change if the true one lies within the margin; two-sided."""
    p_holm: float | None = None
    """The same, adjusted by Holm for all configurations compared together: at most 0.05 decides slower and faster."""
    repeats_needed: int | None = None
    """Where undecided: repeats that would decide it in 80 % of cases, were mean and spread the true ones; None where over
    1,000, and where campaigns are what varies."""
    reason: str = ""


def of_campaigns(logs: Mapping[str, np.ndarray], margin: float) -> dict[str, Change]:
    """Change of each configuration, from the logarithms of its speeds [campaigns, repeats]; the last campaign is after.

    Each campaign has a level of its own, of which its repeats say nothing. So the question is whether the last is one more
    campaign like those before: Student's prediction interval for the next of k normal numbers. With fewer before than
    MIN_CAMPAIGNS nothing is decided, and the interval is that of repeats.
    """
    before = min((len(each) - 1 for each in logs.values()), default=0)
    if before >= MIN_CAMPAIGNS:
        levels = {key: each.mean(axis=1) if each.size else each[:, 0:0].ravel() for key, each in logs.items()}
        return of_repeats({key: list(each[-1:] - each[:-1]) for key, each in levels.items()}, margin, of_next=True)
    changes = of_repeats({key: list(each[-1] - each[:-1].mean(axis=0)) for key, each in logs.items()}, margin)
    reason = f"no gate: {before} of {MIN_CAMPAIGNS} campaigns before, and the interval is that of repeats"
    return {
        key: replace(change, verdict="undecided", reason=reason, repeats_needed=None) for key, change in changes.items()
    }


def of_repeats(ratios: Mapping[str, Sequence[float]], margin: float, of_next: bool = False) -> dict[str, Change]:
    """Change of each configuration, from its log-ratios: of repeats, or where the next is meant, of campaigns."""
    enough = {
        key: Estimate(tuple(values), log=True, of_next=of_next)
        for key, values in ratios.items()
        if len(values) >= FEWEST
    }
    decided = dict(zip(enough, judged(list(enough.values()), margin), strict=True))
    return {key: decided.get(key) or _too_few(values) for key, values in ratios.items()}


def _too_few(values: Sequence[float]) -> Change:
    pairs = "1 pair" if len(values) == 1 else f"{len(values)} pairs"
    ratio = math.exp(math.fsum(values) / len(values)) if values else None
    return Change(ratio=ratio, n=len(values), reason=f"{pairs} of {FEWEST} that an interval needs")


def judged(found: Sequence[Estimate], margin: float = MARGIN) -> list[Change]:
    """The verdict on each configuration, from its log-ratios; `margin` is relative, 0.03 for 3 %.

    *slower* and *faster*: beyond the margin, at 5 % over all configurations together (Holm, Scand. J. Statist. 6 (1979)
    65). Holm and not a false discovery rate: one false alarm stops a release, and its bound holds for configurations that
    share rounds and therefore noise. *same*: the 90 % interval lies inside the margin (two one-sided tests at 5 %;
    Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657); that all are the same is claimed only if each is, which needs no
    adjustment. Anything else is *undecided*.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"a margin is a share of the speed, not {margin}")
    margins = Region(1 / (1 + margin), 1 + margin)
    beyond = [margins.p_outside(one) for one in found]
    return [
        _change(one, margins, p, p_holm, len(found)) for one, p, p_holm in zip(found, beyond, holm(beyond), strict=True)
    ]


def _change(found: Estimate, margins: Region, p: float, p_holm: float, together: int) -> Change:
    within = Region(margins.low, margins.high, one_sided=True)
    change = Change("undecided", found.value, *found.interval(1 - ERROR), found.n, p, p_holm)
    if p_holm <= ERROR:
        return replace(change, verdict="slower" if found.median < 0 else "faster")
    if within.p_inside(found) <= ERROR:
        return replace(change, verdict="same")
    reason = (
        "beyond the margin by itself, not among so many configurations" if p <= ERROR else "the interval is too wide"
    )
    if found.of_next:
        return replace(change, verdict="undecided", reason=reason)
    is_inside = margins.low < found.value < margins.high
    needed = rounds_needed(within, found) if is_inside else rounds_needed(margins, found, ERROR / together)
    return replace(change, verdict="undecided", reason=reason, repeats_needed=needed)


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Of a gate: 1 where any is slower, else 3 where any is undecided, else 0."""
    return 1 if "slower" in verdicts else 3 if "undecided" in verdicts else 0
