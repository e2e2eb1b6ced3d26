"""Parts of a training step, by the time that it loses without one of them; gains and their intervals; all in sentences.

All differences and ratios are taken within a round and then averaged over rounds (Student's t), so that a machine that gets
slower from round to round does not widen them. Differences are those of steps without the time between them: an evaluation
falls into some windows and not into others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.special import stdtrit

from scalestudy.program.observe import Observation, Rank
from scalestudy.program.takeaway import ALONE, WHOLE, Rounds

CONFIDENCE = 0.95
MIN_SHARE = 0.02
"""Smallest share of a step that is called a part: below it a user has nothing to gain."""
UNDECIDED = 0.2
"""Share of a step that parts which were not seen may have together; beyond it nothing is concluded from them."""
WORTHWHILE = 1.05
"""Smallest gain of a setting that is worth a line."""
LABELS = {
    "loading": "waiting for data",
    "exchange": "exchange between ranks",
    "straggler": "waiting for a slow rank",
    "copies": "copies to the GPU",
    "between_steps": "between steps",
    "rest": "the rest",
}
"""Names of parts."""


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
    rounds: int
    workers: int = 0
    """Of the first loader of training batches."""
    parts: list[Part] = field(default_factory=list)
    whatif: list[WhatIf] = field(default_factory=list)
    not_seen: dict[str, float] = field(default_factory=dict)
    """Parts whose interval holds 0, with its upper end in seconds."""
    not_examined: dict[str, str] = field(default_factory=dict)
    slow_rank: int | None = None

    def part(self, name: str) -> Part | None:
        """Return a part by name; None where it was not seen or not examined."""
        return next((part for part in self.parts if part.name == name), None)

    def add(self, name: str, values: Sequence[float], tests: int = 1) -> None:
        """Add a part, or note that it was not seen: its interval holds 0, or it is too small a share of the step."""
        part = _part(name, values, tests)
        if part.low > 0 and part.seconds >= MIN_SHARE * self.step.seconds:
            self.parts.append(part)
        else:
            self.not_seen[name] = max(0.0, part.high)


def explain(observed: Rounds) -> Explanation:
    """Return the parts of a step from rounds of observed runs; at least three rounds."""
    rounds = observed.rounds
    whole = [one[WHOLE].step_s for one in rounds]
    result = Explanation(len(rounds[0][WHOLE].ranks), _part("step", whole), len(rounds))
    result.workers = next((each["num_workers"] for each in observed.calibration.ranks[0].training_loaders), 0)
    result.not_examined = dict(observed.not_examined)
    examined = set.intersection(*(set(one) for one in rounds))
    if "loading" in examined:
        result.add("loading", [_loading_s(one) for one in rounds])
    if WHOLE + ALONE in examined:
        _add_exchange(result, rounds)
    if {"loading", "copies"} <= examined:
        result.add("copies", [_own_s(one["loading"]) - _own_s(one["copies"]) for one in rounds])
    if observed.calibration.ranks[0].training_loaders:
        result.add("between_steps", [_between_s(one[WHOLE]) for one in rounds])
    least = next(name for name in ("copies", "loading", WHOLE) if name in examined)
    bare = least if "exchange" in result.not_examined or least + ALONE not in examined else least + ALONE
    has_between = result.part("between_steps") is not None
    between_s = [0.0 if has_between else _between_s(one[bare]) for one in rounds]
    paces = [_pace(one[bare], result.slow_rank) if bare.endswith(ALONE) else _own_s(one[bare]) for one in rounds]
    result.add("rest", [pace + between for pace, between in zip(paces, between_s, strict=True)])
    for name in ("workers", "pinned"):
        if name in examined:
            # Without the time between steps of the changed run, which may have started an evaluation's own workers in it.
            ratios = [one[WHOLE].step_s / (_own_s(one[name]) + _between_s(one[WHOLE])) for one in rounds]
            gain = _part(name, [math.log(ratio) for ratio in ratios])
            result.whatif.append(WhatIf(name, *map(math.exp, (gain.seconds, gain.low, gain.high))))
    return result


def _part(name: str, values: Sequence[float], tests: int = 1) -> Part:
    """Return mean and 95 % interval; with several tests of which the largest counts, by Bonferroni."""
    t = float(stdtrit(len(values) - 1, 1 - (1 - CONFIDENCE) / 2 / tests))
    mean, half = statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))
    return Part(name, mean, mean - half, mean + half)


def _pace(run: Observation, slow_rank: int | None) -> float:
    """Return the longest step of ranks that do not exchange, or the median step of all but a slow rank that is a part."""
    own = [_of_rank_s(rank) for rank in run.ranks if rank.rank != slow_rank]
    return max(own) if slow_rank is None else statistics.median(own)


def _own_s(run: Observation) -> float:
    """Return the step without the longest time between two, for which ranks that exchange wait within their step."""
    return run.step_s - _between_s(run)


def _of_rank_s(rank: Rank) -> float:
    return rank.step_s - rank.between_s / rank.steps


def _between_s(run: Observation) -> float:
    """Time per step from its end to the next fetch of a training batch, of the rank that takes longest."""
    return max(rank.between_s / rank.steps for rank in run.ranks)


def _loading_s(runs: Mapping[str, Observation]) -> float:
    """Return the loading time of a step; where batches differ in size, capped at the measured wait for data.

    The replayed batches may be smaller than the others, and faster to compute.
    """
    lost = _own_s(runs[WHOLE]) - _own_s(runs["loading"])
    differ = any(loader["differ"] for rank in runs["loading"].ranks for loader in rank.training_loaders)
    return min(lost, max(rank.waited_s / rank.steps for rank in runs[WHOLE].ranks)) if differ else lost


def _add_exchange(result: Explanation, rounds: Sequence[Mapping[str, Observation]]) -> None:
    """Divide the time gone without synchronisation into waiting for a slow rank and the exchange itself.

    Without synchronisation each rank runs at its own pace. The slow rank's step minus the median of the others' is what
    they wait for it; the whole step minus the slow rank's is exchange.
    """
    alone = [one[WHOLE + ALONE].ranks for one in rounds]
    if alone[0][0].is_compiled and len({rank.parameters for rank in alone[0]}) == 1:
        why = "ranks kept equal parameters without synchronisation, so it was not taken away"
        result.not_examined["exchange"] = why
        return
    own = [{rank.rank: _of_rank_s(rank) for rank in ranks} for ranks in alone]
    slow = max(own[0], key=lambda rank: statistics.mean(one[rank] for one in own))
    others = [[seconds for rank, seconds in one.items() if rank != slow] for one in own]
    lags = [one[slow] - statistics.median(rest) for one, rest in zip(own, others, strict=True)]
    result.add("straggler", lags, tests=len(own[0]))
    has_straggler = result.part("straggler") is not None
    result.slow_rank = slow if has_straggler else None
    pace = [one[slow] if has_straggler else statistics.mean(one.values()) for one in own]
    result.add("exchange", [_own_s(one[WHOLE]) - own_s for one, own_s in zip(rounds, pace, strict=True)])


# In words


def sentences(explanation: Explanation) -> list[str]:
    """Return two to six sentences: the step, its parts, and the settings that help."""
    step = explanation.step
    ranks = f" on {explanation.ranks} ranks" if explanation.ranks > 1 else ""
    lines = [f"A step takes {_ms(step.seconds)} ± {_ms(step.high - step.seconds, unit=False)}{ranks}."]
    parts = sorted(explanation.parts, key=lambda part: -part.seconds)
    lines += [_sentence(part, explanation) for part in parts if part.name != "rest"]
    if len(lines) == 1:
        lines.append(f"None of the parts that were taken away is seen in it: {_where_else(explanation)}.")
    return [*lines, *_gains(explanation), *_overlap(explanation)]


def _where_else(explanation: Explanation) -> str:
    """Say where the time of a step is in which no part was seen, or that the rounds cannot tell."""
    hidden_s = sum(explanation.not_seen.values())
    if hidden_s > UNDECIDED * explanation.step.seconds:
        return (
            f"the rounds differ so much that together they may still be {_ms(hidden_s)}; repeat it on a quieter machine"
        )
    return "the time is the script's own computation, or in what was not examined"


def _sentence(part: Part, explanation: Explanation) -> str:
    share = f"{part.seconds / explanation.step.seconds:.0%}"
    size = f"{_ms(part.seconds)} of it ({_ms(part.low, unit=False)} to {_ms(part.high)}, {share})"
    without = _ms(explanation.step.seconds - part.seconds)
    texts = {
        "loading": f"is waiting for data: with batches from memory it takes {without}.",
        "exchange": f"is exchange between ranks that nothing hides: without it a step takes {without}.",
        "straggler": f"is waiting for rank {explanation.slow_rank}, which is slower than the others by itself.",
        "copies": f"is copies to the GPU: with batches that are there already it takes {without}.",
        "between_steps": "passes between optimiser steps: evaluation, logging or checkpoints.",
    }
    return f"{size} {texts[part.name]}"


def _gains(explanation: Explanation) -> Iterator[str]:
    now = explanation.workers
    for whatif in explanation.whatif:
        if whatif.low >= 1 and whatif.speedup >= WORTHWHILE:
            change = "`pin_memory=True`"
            if whatif.name == "workers":
                change = f"`num_workers={max(1, 2 * now)}` in place of {now}"
            yield f"{change} gives {whatif.speedup:.2g} times the speed ({whatif.low:.2g} to {whatif.high:.2g})."


def _overlap(explanation: Explanation) -> Iterator[str]:
    """Yield a sentence where the parts do not add up to the step, by more than its own interval."""
    total = sum(part.seconds for part in explanation.parts)
    step = explanation.step
    tolerance = max(step.high - step.seconds, 0.05 * step.seconds)
    if len(explanation.parts) >= 2 and abs(total - step.seconds) > tolerance:
        relation = "some time is in more than one of them"
        if total < step.seconds:
            relation = "they overlap, and no one of them alone gives all of its time back"
        yield f"The parts add up to {_ms(total)} of {_ms(step.seconds)}: {relation}."


def unseen(explanation: Explanation) -> list[str]:
    """Return a line for each part that was not seen, and for each that was not examined."""
    seen = [f"not seen: {LABELS[name]} (at most {_ms(high)})" for name, high in explanation.not_seen.items()]
    return [*seen, *(f"not examined: {name}: {reason}" for name, reason in explanation.not_examined.items())]


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as plain data; times in seconds."""
    step = explanation.step
    return {
        "ranks": explanation.ranks,
        "rounds": explanation.rounds,
        "step_s": step.seconds,
        "low_s": step.low,
        "high_s": step.high,
        "parts": [vars(part) for part in explanation.parts],
        "whatif": [vars(whatif) for whatif in explanation.whatif],
        "slow_rank": explanation.slow_rank,
        "sentences": sentences(explanation),
        "unseen": unseen(explanation),
        "not_seen": [{"name": name, "high": high} for name, high in explanation.not_seen.items()],
        "not_examined": [{"name": name, "reason": reason} for name, reason in explanation.not_examined.items()],
    }


def _ms(seconds: float, unit: bool = True) -> str:
    """Return a time in milliseconds, or in seconds from 10 s on, with two to three digits."""
    if abs(seconds) >= 10:
        return f"{seconds:.3g}{' s' if unit else ''}"
    milliseconds = 1e3 * seconds
    digits = 0 if abs(milliseconds) >= 100 else 1 if abs(milliseconds) >= 10 else 2
    return f"{milliseconds:.{digits}f}{' ms' if unit else ''}"
