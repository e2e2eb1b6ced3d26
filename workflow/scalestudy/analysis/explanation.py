"""Parts of a training step, by the time that it loses without one of them; gains and their intervals.

All differences and ratios are taken within a round and then averaged over rounds (Student's t), so that a machine that gets
slower from round to round does not widen them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scipy.special import stdtrit

from scalestudy.analysis.stats import CONFIDENCE
from scalestudy.program.observe import Observation
from scalestudy.program.takeaway import WHOLE, Rounds

MIN_SHARE = 0.02
"""Smallest share of a step that is called a part: below it a user has nothing to gain."""


@dataclass(frozen=True)
class Part:
    """A part of the step in seconds, with its 95 % interval."""

    name: str
    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class WhatIf:
    """Factor on the speed that a changed setting gives, with its 95 % interval."""

    name: str
    speedup: float
    low: float
    high: float


@dataclass
class Explanation:
    """A script's step time, its parts, and the effect of settings."""

    ranks: int
    step: Part
    parts: list[Part] = field(default_factory=list)
    whatif: list[WhatIf] = field(default_factory=list)
    not_seen: dict[str, float] = field(default_factory=dict)
    """Parts whose interval holds 0, with its upper end in seconds."""
    not_examined: dict[str, str] = field(default_factory=dict)
    slow_rank: int | None = None
    rounds: int = 0

    def part(self, name: str) -> Part | None:
        """Return a part by name; None where it was not seen or not examined."""
        return next((part for part in self.parts if part.name == name), None)


def explain(observed: Rounds) -> Explanation:
    """Return the parts of a step from rounds of observed runs; at least three rounds."""
    rounds = observed.rounds
    whole = [one[WHOLE].step_s for one in rounds]
    result = Explanation(len(rounds[0][WHOLE].ranks), _part("step", whole), rounds=len(rounds))
    result.not_examined = dict(observed.not_examined)
    examined = [name for name in observed.removals if all(name in one for one in rounds)]
    step_s = result.step.seconds
    if "loading" in examined:
        _add(result, "loading", [one[WHOLE].step_s - one["loading"].step_s for one in rounds], step_s)
    if "exchange" in examined:
        _add_exchange(result, rounds, step_s)
    if {"loading", "copies"} <= set(examined):
        _add(result, "copies", [one["loading"].step_s - one["copies"].step_s for one in rounds], step_s)
    if "loading" not in observed.not_examined:
        _add(result, "between_steps", [_between_s(one[WHOLE]) for one in rounds], step_s)
    gone = {name: frozenset(observed.removals[name].remove) for name in examined}
    bare = next((name for name, parts in gone.items() if parts == frozenset().union(*gone.values())), None)
    if bare is None:
        result.not_examined["rest"] = "no run had all parts taken away"
    else:
        between = [_between_s(one[bare]) if result.part("between_steps") else 0.0 for one in rounds]
        pace = [_pace(one[bare], result.slow_rank) for one in rounds]
        _add(result, "rest", [own_s - between_s for own_s, between_s in zip(pace, between, strict=True)], step_s)
    for name in ("workers", "pinned"):
        if name in examined:
            result.whatif.append(_whatif(name, [one[WHOLE].step_s / one[name].step_s for one in rounds]))
    return result


def _add(result: Explanation, name: str, values: Sequence[float], step_s: float, tests: int = 1) -> None:
    """Add a part, or note that it was not seen: its interval holds 0, or it is too small a share of the step."""
    part = _part(name, values, tests)
    if part.low > 0 and part.seconds >= MIN_SHARE * step_s:
        result.parts.append(part)
    else:
        result.not_seen[name] = max(0.0, part.high)


def _part(name: str, values: Sequence[float], tests: int = 1) -> Part:
    """Return mean and 95 % interval; with several tests of which the largest counts, by Bonferroni."""
    mean, half = _mean_and_half_width(values, tests)
    return Part(name, mean, mean - half, mean + half)


def _whatif(name: str, ratios: Sequence[float]) -> WhatIf:
    mean, half = _mean_and_half_width([math.log(ratio) for ratio in ratios])
    return WhatIf(name, math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _mean_and_half_width(values: Sequence[float], tests: int = 1) -> tuple[float, float]:
    t = float(stdtrit(len(values) - 1, 1 - (1 - CONFIDENCE) / 2 / tests))
    return statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))


def _pace(run: Observation, slow_rank: int | None) -> float:
    """Step time of the slowest rank; where a slow rank is a part of its own, the median of the others."""
    if slow_rank is None:
        return run.step_s
    return statistics.median(rank.step_s for rank in run.ranks if rank.rank != slow_rank)


def _between_s(run: Observation) -> float:
    """Time per step from its end to the next fetch of a training batch, of the slowest rank."""
    rank = max(run.ranks, key=lambda rank: rank.step_s)
    return rank.between_s / rank.steps


def _add_exchange(result: Explanation, rounds: Sequence[Mapping[str, Observation]], step_s: float) -> None:
    """Divide the time gone without synchronisation into waiting for a slow rank and the exchange itself.

    Without synchronisation each rank runs at its own pace. The slow rank's step minus the median of the others' is what
    they wait for it; the whole step minus the slow rank's is exchange.
    """
    if not _took_effect(rounds):
        result.not_examined["exchange"] = (
            "ranks kept equal parameters without synchronisation, so it was not taken away"
        )
        return
    if any(rank.fsdp_modules for rank in rounds[0]["exchange"].ranks):
        result.not_examined["straggler"] = "FSDP's all-gathers keep its ranks in step"
        _add(result, "exchange", [one[WHOLE].step_s - one["exchange"].step_s for one in rounds], step_s)
        return
    own = [{rank.rank: rank.step_s for rank in one["exchange"].ranks} for one in rounds]
    slow = max(own[0], key=lambda rank: statistics.mean(one[rank] for one in own))
    others = [[seconds for rank, seconds in one.items() if rank != slow] for one in own]
    lags = [one[slow] - statistics.median(rest) for one, rest in zip(own, others, strict=True) if rest]
    if lags:
        _add(result, "straggler", lags, step_s, tests=len(own[0]))
    has_straggler = result.part("straggler") is not None
    result.slow_rank = slow if has_straggler else None
    pace = [one[slow] if has_straggler else statistics.mean(one.values()) for one in own]
    _add(result, "exchange", [one[WHOLE].step_s - own_s for one, own_s in zip(rounds, pace, strict=True)], step_s)


def _took_effect(rounds: Sequence[Mapping[str, Observation]]) -> bool:
    """Tell whether ranks went apart without synchronisation; only compiled steps are in doubt."""
    ranks = rounds[0]["exchange"].ranks
    if not any(rank.is_compiled for rank in ranks) or any(rank.fsdp_modules for rank in ranks):
        return True
    return len({rank.parameters for rank in ranks}) > 1
