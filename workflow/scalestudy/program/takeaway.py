"""Rounds of observed runs of a user's command: whole, and with each of its parts taken away."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalestudy.program.observe import Observation, Rank, Removal, observe

WHOLE = "whole"
BARE = "bare"
"""Everything taken away that can be, where no other run has that."""
CALIBRATION_STEPS = 4
WARMUP_STEPS = 8
"""More than the hooks keep for replay."""
MIN_STEPS, MIN_ROUNDS, MAX_ROUNDS = 8, 3, 8
WINDOWS_S = (4.0, 2.0, 1.0)
"""Lengths of a window; the first for which there is time is taken."""
MAX_CALIBRATION_S = 600.0


@dataclass
class Rounds:
    """Everything that was observed of a command."""

    calibration: Observation
    steps: int = 0
    rounds: list[dict[str, Observation]] = field(default_factory=list)
    removals: dict[str, Removal] = field(default_factory=dict)
    not_examined: dict[str, str] = field(default_factory=dict)
    """Parts and settings by name, with the reason."""


def take_away(
    command: Sequence[str],
    folder: Path,
    max_steps: int,
    budget_s: float,
    only: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
    seed: int = 0,
) -> Rounds:
    """Observe the command whole and with parts taken away, in rounds of a drawn order, within `budget_s` seconds.

    The number of rounds is fixed after the calibration run, from the time that a run takes. `only` names the parts to
    take away. `tell` gets a line of progress before each run.
    """
    begin = time.monotonic()
    tell("first run: what the script does")
    calibration = observe(
        command, Removal(WHOLE), CALIBRATION_STEPS, WARMUP_STEPS, MAX_CALIBRATION_S, folder / "calibration"
    )
    result = Rounds(calibration)
    if calibration.failure:
        return result
    result.removals, result.not_examined = possible_removals(calibration.ranks, only)
    left_s = budget_s - (time.monotonic() - begin)
    result.steps, count = plan_rounds(calibration, result, max_steps, left_s, only)
    limit_s = 4 * calibration.seconds + 4 * result.steps * calibration.step_s + 20
    draw = random.Random(seed)
    for number in range(1, count + 1):
        order = list(result.removals.values())
        draw.shuffle(order)
        observed: dict[str, Observation] = {}
        for removal in order:
            tell(f"round {number} of {count}: {removal.name}")
            run = observe(
                command, removal, result.steps, WARMUP_STEPS, limit_s, folder / f"round_{number}" / removal.name
            )
            if not run.failure:
                observed[removal.name] = run
            elif removal.name == WHOLE:
                result.calibration = run
                return result
            else:
                del result.removals[removal.name]
                result.not_examined[removal.name] = f"the script failed under this change: {run.failure}"
        result.rounds.append(observed)
    return result


def possible_removals(ranks: Sequence[Rank], only: Sequence[str] = ()) -> tuple[dict[str, Removal], dict[str, str]]:
    """Return the removals that a script allows, by name, and the reasons of those that it does not."""
    first, loaders = ranks[0], ranks[0].training_loaders
    parts: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    if loaders:
        parts["loading"] = ("loading",)
    else:
        reasons["loading"] = (
            "no DataLoader feeds the optimiser steps; batches that the script makes itself are in the rest"
        )
    if first.ddp_modules or first.fsdp_modules:
        parts["exchange"] = ("exchange",)
    elif first.is_distributed:
        reasons["exchange"] = (
            "neither DistributedDataParallel nor FSDP2 was seen; the script's own exchange is in the rest"
        )
    if first.fsdp_modules:
        reasons["all-gather"] = (
            "FSDP gathers its parameters in every step; only the reduction of gradients is taken away"
        )
    if first.on_gpu and loaders:
        parts["copies"] = ("loading", "copies")
    elif first.on_gpu:
        reasons["copies"] = "no DataLoader gives the batches that are copied"
    removals = {name: Removal(name, remove) for name, remove in {WHOLE: (), **parts}.items()}
    if loaders:
        removals["workers"] = Removal("workers", workers=2)
    if first.on_gpu and not all(loader["pin_memory"] for loader in loaders):
        removals["pinned"] = Removal("pinned", pin=True)
    # Copies are what is lost beyond loading.
    kept = {WHOLE, *(only or removals), *(["loading"] if "copies" in only else [])}
    reasons |= {name: "left out by --only" for name in removals if name not in kept}
    removals = {name: removal for name, removal in removals.items() if name in kept}
    bare = tuple(name for name in parts if name in kept)
    if all(set(removal.remove) != set(bare) for removal in removals.values()):
        removals[BARE] = Removal(BARE, bare)
    return removals, reasons


def plan_rounds(
    calibration: Observation, result: Rounds, max_steps: int, left_s: float, only: Sequence[str] = ()
) -> tuple[int, int]:
    """Return steps per window and rounds for the time that is left; removals without time go to `not_examined`.

    Shorter windows come first, then fewer settings, then fewer parts; those in `only` stay.
    """
    step_s = calibration.step_s
    start_s = max(0.0, calibration.seconds - (WARMUP_STEPS + CALIBRATION_STEPS) * step_s)

    def rounds(steps: int) -> int:
        return int(left_s / (len(result.removals) * (start_s + (WARMUP_STEPS + steps) * step_s)))

    windows = [min(max_steps, max(MIN_STEPS, math.ceil(seconds / step_s))) for seconds in WINDOWS_S]
    expendable = ("pinned", "workers", BARE, "copies", "exchange")
    dispensable = [name for name in expendable if name in result.removals and name not in only]
    while True:
        for steps in windows:
            if rounds(steps) >= MIN_ROUNDS:
                return steps, min(MAX_ROUNDS, rounds(steps))
        if not dispensable:
            return windows[-1], MIN_ROUNDS
        name = dispensable.pop(0)
        del result.removals[name]
        if name != BARE:
            result.not_examined[name] = "no time for it; --minutes gives more"
