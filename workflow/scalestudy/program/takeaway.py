"""Rounds of observed runs of a user's command: whole, and with each of its parts taken away."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalestudy.program.observe import Observation, Removal, observe
from scalestudy.spec.labels import counted

WHOLE = "whole"
EXCHANGE = "exchange"
ALONE = " without exchange"
"""Follows a run's name: its window in which ranks do not exchange."""
CALIBRATION_STEPS = 4
WARMUP_STEPS = 6
"""More than the hooks keep for replay."""
SETTLING_STEPS = 3
"""Between two windows of a run; also in inject/scalestudy_hooks/steps.py."""
MIN_ROUNDS, MAX_ROUNDS = 3, 8
WINDOWS = ((4.0, 8), (2.0, 8), (1.0, 8), (0.0, 4))
"""Seconds of a window, and its least steps; the first for which there is time is taken."""
MIN_OF_START = 0.1
"""Least length of a window, as a share of what a run takes to start: shorter ones save no time, and see little."""
MAX_CALIBRATION_S = 600.0


@dataclass
class Rounds:
    """Everything that was observed of a command, by run and window: a run's name, or that and ALONE."""

    calibration: Observation
    steps: int = 0
    round_s: float = 0.0
    """Seconds that a round is expected to take."""
    examines_exchange: bool = False
    rounds: list[dict[str, Observation]] = field(default_factory=list)
    removals: dict[str, Removal] = field(default_factory=dict)
    not_examined: dict[str, str] = field(default_factory=dict)
    """Parts and settings by name, with the reason."""


def take_away(
    command: Sequence[str],
    folder: Path,
    max_steps: int,
    budget_s: float,
    tell: Callable[[str], None],
) -> Rounds:
    """Observe the command whole and with parts taken away, in rounds of a drawn order, within `budget_s` seconds.

    Loading, copies and settings change between runs. Exchange changes within a run, in a drawn order: starting a run often
    takes longer than its windows. The number of rounds is fixed after the calibration run, from the time that a run takes.
    `tell` gets a line of progress before each run.
    """
    begin = time.monotonic()
    tell("first run: what the script does")
    [calibration] = observe(
        command, Removal(WHOLE), CALIBRATION_STEPS, WARMUP_STEPS, MAX_CALIBRATION_S, folder / "calibration"
    )
    result = Rounds(calibration)
    if calibration.failure:
        return result
    possible_removals(result)
    count = plan_rounds(result, max_steps, budget_s - (time.monotonic() - begin))
    tell(f"{count} rounds of {counted(len(result.removals), 'run')}: about {count * result.round_s / 60:.1f} minutes")
    limit_s = 4 * calibration.seconds + 8 * result.steps * calibration.step_s + 20
    draw = random.Random(0)
    for number in range(1, count + 1):
        order = list(result.removals.values())
        draw.shuffle(order)
        observed: dict[str, Observation] = {}
        while order:
            removal = order.pop()
            tell(f"round {number} of {count}: {removal.name}")
            exchange = [True]
            if result.examines_exchange and removal.is_of_parts:
                exchange = draw.sample([True, False], 2)
            where = folder / f"round_{number}" / f"{removal.name}_{len(order)}_{len(exchange)}"
            windows = observe(command, removal, result.steps, WARMUP_STEPS, limit_s, where, exchange)
            failure = windows[0].failure
            if not failure:
                names = (removal.name + ("" if on else ALONE) for on in exchange)
                observed.update(zip(names, windows, strict=True))
            elif len(exchange) == 2:
                result.examines_exchange = False
                result.not_examined[EXCHANGE] = f"not measured without it: {failure}"
                order.append(removal)
            elif removal.name == WHOLE:
                result.calibration = windows[0]
                return result
            else:
                del result.removals[removal.name]
                result.not_examined[removal.name] = f"not measured under this change: {failure}"
        result.rounds.append(observed)
        if number >= MIN_ROUNDS and time.monotonic() - begin > budget_s:
            break  # runs took longer than the first one
    return result


def possible_removals(result: Rounds) -> None:
    """Note the removals that a script allows, and the reasons of those that it does not, from the calibration run."""
    first, loaders = result.calibration.ranks[0], result.calibration.ranks[0].training_loaders
    reasons = result.not_examined
    removals = [Removal(WHOLE)]
    if loaders:
        removals += [Removal("loading", ("loading",)), Removal("workers", workers=2)]
    else:
        reasons["loading"] = (
            "no DataLoader feeds the optimiser steps; batches that the script makes itself are in the rest"
        )
    if first.on_gpu and loaders:
        removals.append(Removal("copies", ("loading", "copies")))
    elif first.on_gpu:
        reasons["copies"] = "no DataLoader gives the batches that are copied"
    if first.on_gpu and not all(loader["pin_memory"] for loader in loaders):
        removals.append(Removal("pinned", pin=True))
    result.examines_exchange = first.is_distributed
    if first.world > 1 and not first.is_distributed:
        reasons[EXCHANGE] = "its ranks do not use torch.distributed; their exchange is in the rest"
    result.removals = {removal.name: removal for removal in removals}


def plan_rounds(result: Rounds, max_steps: int, left_s: float) -> int:
    """Set the steps of a window and return the number of rounds for the time that is left.

    Shorter windows come first; then settings and copies go to `not_examined`. Loading and exchange always have their three
    rounds.
    """
    step_s = result.calibration.step_s
    start_s = max(0.0, result.calibration.seconds - (WARMUP_STEPS + CALIBRATION_STEPS) * step_s)

    def round_s(steps: int) -> float:
        further = SETTLING_STEPS + steps if result.examines_exchange else 0
        return sum(
            start_s + step_s * (WARMUP_STEPS + steps + (further if removal.is_of_parts else 0))
            for removal in result.removals.values()
        )

    least_s = MIN_OF_START * start_s
    windows = [min(max_steps, max(least, math.ceil(max(seconds, least_s) / step_s))) for seconds, least in WINDOWS]
    dispensable = [name for name in ("pinned", "workers", "copies") if name in result.removals]
    while True:
        for result.steps in windows:
            result.round_s = round_s(result.steps)
            if MIN_ROUNDS * result.round_s <= left_s:
                return min(MAX_ROUNDS, int(left_s / result.round_s))
        if not dispensable:
            return MIN_ROUNDS
        name = dispensable.pop(0)
        del result.removals[name]
        result.not_examined[name] = "no time for it; --minutes gives more"
