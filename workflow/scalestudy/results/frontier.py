"""Whose time a step's parts are: frontier accounting over all ranks.

Ranks that wait for each other once a step, in the exchange, have the same order of phases. With d(r, i) the seconds of
phase i on rank r, F_s = max over r of the sum of d(r, i) over i <= s is when the last rank has done phase s, and phase s
owns F_s - F_(s-1). So the parts sum to the step of the slowest rank; what one rank waits for is counted once, as the
phase of the rank that it waited for; and clocks of several hosts need not agree (StageFrontier, arXiv 2606.06751).
Taking the largest time of each phase over ranks instead would count a slow rank twice: as its own computing, and as the
others' exchange.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scalestudy.measure.timers import PHASES

BEFORE_EXCHANGE = PHASES.index("exchange")
"""Number of phases before the exchange."""


def parts_of_steps(phases: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [steps, 6]: what each of PHASES owns of each step, from `phases` [ranks, steps, 6]; none is negative."""
    frontier = np.cumsum(phases, axis=2).max(axis=0)
    parts: NDArray[np.float64] = np.diff(frontier, prepend=0.0, axis=1)
    return parts


def waiting(phases: NDArray[np.float64]) -> float:
    """Mean seconds, over ranks and steps, from a rank's entry into the exchange to that of the last rank."""
    entry = phases[:, :, :BEFORE_EXCHANGE].sum(axis=2)
    return float(np.minimum(entry.max(axis=0) - entry, phases[:, :, BEFORE_EXCHANGE]).mean())
