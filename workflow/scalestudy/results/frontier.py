"""Attribution of a step's time to its parts: frontier accounting over all ranks.

Ranks that wait for each other in every step, in the exchange, have the same order of phases. With d(r, i) the seconds
of phase i on rank r, F_s = max over r of the sum of d(r, i) over i <= s is when the last rank has done phase s, and
phase s owns F_s - F_(s-1) (StageFrontier, arXiv 2606.06751). So the parts sum to the step, and time that one rank waits for
is counted once, as the phase of the rank that it waited for. The largest time of each phase over ranks would count a
slow rank twice: as its own computing, and as the others' exchange.

The sums run on over up to STEPS_TOGETHER steps, from their common begin, so that a rank that leaves one exchange a
little later than the others, and the next one a little earlier, does not lengthen every step. Then they begin anew:
clocks of several hosts or devices are not the same, and drift apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from scalestudy.measure.timers import MARKS, PHASES

STEPS_TOGETHER = 100
"""Ten seconds of steps of 0.1 s, in which clocks that differ by 20 ppm drift apart by 0.2 ms."""
ENTRY = PHASES.index("exchange")
"""The mark of a step at which a rank enters the exchange."""

Marks = NDArray[np.float64]


def parts_of_steps(marks: Marks, stretches: list[slice]) -> Marks:
    """float64 [steps, 6]: the share of each of PHASES in each step of the stretches, all ranks together; none is negative.

    `marks` [ranks, steps, 7] are on each rank's own clock. Time between two steps is no part of either.
    """
    parts = []
    for clocks in _together(marks, stretches):
        frontier = clocks.max(axis=0)
        parts.append(np.diff(frontier.ravel(), prepend=0.0).reshape(-1, MARKS)[:, 1:])
    return np.concatenate(parts)


def waiting(marks: Marks, stretches: list[slice]) -> float:
    """Mean seconds, over ranks and steps, from a rank's entry into the exchange to that of the last rank."""
    waits = []
    for clocks in _together(marks, stretches):
        entry = clocks[:, :, ENTRY]
        waits.append(np.minimum(entry.max(axis=0) - entry, clocks[:, :, ENTRY + 1] - entry))
    return float(np.concatenate(waits, axis=1).mean())


def _together(marks: Marks, stretches: list[slice]) -> Iterator[Marks]:
    """The marks of steps that follow each other, [ranks, up to STEPS_TOGETHER, 7], since the start of the first."""
    for part in stretches:
        for first in range(part.start, part.stop, STEPS_TOGETHER):
            steps = marks[:, first : min(part.stop, first + STEPS_TOGETHER)]
            yield steps - steps[:, :1, :1]
