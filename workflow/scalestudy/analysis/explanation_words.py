"""An explanation in sentences, as a bar, and as JSON."""

from __future__ import annotations

from typing import Any

from scalestudy.analysis.explanation import Explanation, Part
from scalestudy.program.takeaway import Rounds

BAR_WIDTH = 60
LABELS = {
    "loading": "waiting for data",
    "exchange": "gradient exchange",
    "straggler": "waiting for a slow rank",
    "copies": "copies to the GPU",
    "between_steps": "between steps",
    "rest": "the rest",
}
FILLS = {"loading": "L", "exchange": "X", "straggler": "S", "copies": "C", "between_steps": "B", "rest": "·"}
WORTHWHILE = 1.05
"""Smallest gain of a setting that is worth a line."""


def sentences(explanation: Explanation, observed: Rounds) -> list[str]:
    """Return two to six sentences: the step, its parts, and the settings that help."""
    step = explanation.step
    lines = [f"A step takes {_ms(step.seconds)} ± {_ms(step.high - step.seconds, unit=False)}{_ranks(explanation)}."]
    for part in sorted(explanation.parts, key=lambda part: -part.seconds):
        if part.name != "rest":
            lines.append(_sentence(part, explanation))
    if len(lines) == 1:
        lines.append("None of the parts that were taken away is seen in it: the time is the script's own computation.")
    lines.extend(_gains(explanation, observed))
    if (overlap := _overlap(explanation)) is not None:
        lines.append(overlap)
    return lines


def _ranks(explanation: Explanation) -> str:
    return f" on {explanation.ranks} ranks" if explanation.ranks > 1 else ""


def _sentence(part: Part, explanation: Explanation) -> str:
    size = f"{_ms(part.seconds)} of it ({_ms(part.low, unit=False)} to {_ms(part.high)}, {_share(part, explanation)})"
    without = _ms(explanation.step.seconds - part.seconds)
    texts = {
        "loading": f"{size} is waiting for data: with batches from memory it takes {without}.",
        "exchange": f"{size} is gradient exchange that nothing hides: without synchronisation it takes {without}.",
        "straggler": f"{size} is waiting for rank {explanation.slow_rank}, which is slower than the others by itself.",
        "copies": f"{size} is copies to the GPU: with batches that are there already it takes {without}.",
        "between_steps": f"{size} passes between optimiser steps: evaluation, logging or checkpoints.",
    }
    return texts[part.name]


def _share(part: Part, explanation: Explanation) -> str:
    return f"{part.seconds / explanation.step.seconds:.0%}"


def _gains(explanation: Explanation, observed: Rounds) -> list[str]:
    lines = []
    loaders = observed.calibration.ranks[0].training_loaders
    for whatif in explanation.whatif:
        if whatif.low < 1 or whatif.speedup < WORTHWHILE:
            continue
        gain = f"{whatif.speedup:.2g} times the speed ({whatif.low:.2g} to {whatif.high:.2g})"
        if whatif.name == "workers":
            now = loaders[0]["num_workers"]
            lines.append(f"`num_workers={max(1, 2 * now)}` in place of {now} gives {gain}.")
        else:
            lines.append(f"`pin_memory=True` gives {gain}.")
    return lines


def _overlap(explanation: Explanation) -> str | None:
    """Return a sentence where the parts do not add up to the step, by more than its own interval."""
    total = sum(part.seconds for part in explanation.parts)
    step = explanation.step
    tolerance = max(step.high - step.seconds, 0.05 * step.seconds)
    if len(explanation.parts) < 2 or abs(total - step.seconds) <= tolerance:
        return None
    relation = "they overlap, and no one of them alone gives all of its time back" if total < step.seconds else (
        "some time is in more than one of them"
    )  # fmt: skip
    return f"The parts add up to {_ms(total)} of {_ms(step.seconds)}: {relation}."


def bar(explanation: Explanation) -> str:
    """Return the step as a bar of letters with a legend; empty where no part was seen."""
    total = max(sum(part.seconds for part in explanation.parts), explanation.step.seconds)
    pieces, legend = [], []
    for part in explanation.parts:
        width = round(BAR_WIDTH * part.seconds / total)
        pieces.append(FILLS[part.name] * width)
        legend.append(f"{FILLS[part.name]} {LABELS[part.name]} {_ms(part.seconds)}")
    return f"[{''.join(pieces):<{BAR_WIDTH}}]\n {' · '.join(legend)}"


def unseen(explanation: Explanation) -> list[str]:
    """Return a line for each part that was not seen, and for each that was not examined."""
    lines = [
        f"not seen: {LABELS[name]} (at most {_ms(high)})"
        for name, high in explanation.not_seen.items()
        if name in LABELS
    ]
    return [*lines, *(f"not examined: {name}: {reason}" for name, reason in explanation.not_examined.items())]


def as_json(explanation: Explanation, observed: Rounds) -> dict[str, Any]:
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
        "sentences": sentences(explanation, observed),
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
