"""Where a verdict with an emulated accelerator would flip: the step time with which its number would cross the limit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalestudy.claims.model import Sampled
from scalestudy.claims.select import ClaimPart, Row
from scalestudy.errors import UserError
from scalestudy.spec.emulated import is_compute_emulated
from scalestudy.spec.step_times import INFINITE, emulated_step_time

MAX_HIDDEN_STALL = 0.02
"""Share of a step above which it waits for its data."""
FACTORS = [10 ** (exponent / 100) for exponent in range(-200, 201)]
"""Factors of an emulated step that are tried, from a hundredth to a hundredfold."""


def flip_text(claim: Sampled, part: ClaimPart) -> list[str]:
    """The emulated step nearest to the present one with which a ratio of two sides would cross the claim's limit.

    A step that waits for data lasts as long as the data takes, or as the accelerator if that takes longer; else what a step
    has beside the accelerator's time stays as it is. Empty where a side computes, or no such step is found.
    """
    if claim.compared_as != "ratio" or claim.column not in ("throughput_samples_per_s", "step_time_s") or claim.over:
        return []
    steps = [_emulated_step(side) for side in (part.of, part.against or ())]
    if None in steps:
        return []
    of, against = (step for step in steps if step is not None)
    sign = -1 if claim.column == "throughput_samples_per_s" else 1

    def ratio(factor: float) -> float:
        return float((of.at(factor) / against.at(factor)) ** sign)

    low, high = claim.bounds
    holds = low < ratio(1.0) < high
    # What workers could deliver to a faster accelerator is not known.
    ahead = any(row["loader.workers"] for row in part.rows)
    crossed = [factor for factor in FACTORS if (low < ratio(factor) < high) != holds and not (ahead and factor < 1)]
    if not crossed:
        return []
    nearest = min(crossed, key=lambda factor: abs(math.log(factor)))
    now, then = (_time(factor * of.accelerator) for factor in (1.0, nearest))
    return [f"With a step of {then} in place of {now} the verdict would flip, if all else stayed"]


def _time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


@dataclass(frozen=True)
class _Step:
    """An emulated step: seconds in all, and of the accelerator; whether it waits for data."""

    seconds: float
    accelerator: float
    waits: bool

    def at(self, factor: float) -> float:
        """Seconds with an accelerator that takes `factor` times as long."""
        slower = factor * self.accelerator
        return max(self.seconds, slower) if self.waits else slower + max(0.0, self.seconds - self.accelerator)


def _emulated_step(side: Sequence[Row]) -> _Step | None:
    """The median step of a side; None where its accelerator is real or takes no time, or its exchange overlaps."""
    valid = [row for row in side if row["status"] == "valid" and is_compute_emulated(row)]
    if not valid or len(valid) < len(side) or valid[0]["device"].endswith(INFINITE):
        return None
    first = valid[0]
    if first["ranks"] > 1 and math.isnan(first["exchange_s"]):
        return None  # an exchange beside the backward pass hides more behind a longer one
    try:
        own = emulated_step_time(first["model"], first["device"].partition(":")[2], first["batch.per_rank"])
    except UserError:
        return None
    seconds = statistics.median(float(row["step_time_s"]) for row in valid)
    stall = statistics.median(float(row["data_stall"]) for row in valid)
    return _Step(seconds, own, stall > MAX_HIDDEN_STALL)
