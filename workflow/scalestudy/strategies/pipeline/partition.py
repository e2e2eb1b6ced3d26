"""A chain of blocks into consecutive stages, so that the slowest is as fast as can be and each fits in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalestudy.strategies.cost import Link

Array = NDArray[np.float64]


@dataclass(frozen=True)
class BlockCosts:
    """Costs of blocks 0 … B-1 for one micro-batch. Boundary b lies before block b; there are B+1."""

    forward_s: Array
    """[B]"""
    backward_s: Array
    """[B]"""
    parameter_bytes: Array
    """[B] trainable ones; a parameter that several blocks use makes one block of them."""
    fixed_bytes: Array
    """[B] buffers, constants and parameters that are not trained."""
    working_bytes: Array
    """[B] what the hungriest operator needs for a moment."""
    crossing_bytes: Array
    """[B+1] what is sent over each boundary, forward; the input at the first, the output at the last."""
    gradient_bytes: Array
    """[B+1] what is sent back."""
    activation_bytes: Array
    """[B+1, B+1] at q, b: what blocks q … b-1 as one stage keep from forward to backward, what crosses included."""

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.forward_s)


def between(small: BlockCosts, large: BlockCosts, share: float) -> BlockCosts:
    """The chain at another number of samples: `share` 0 is `small`, 1 is `large`; all costs are affine in it."""
    pairs = zip(vars(small).values(), vars(large).values(), strict=True)
    return BlockCosts(*(np.maximum(0.0, one + share * (other - one)) for one, other in pairs))


def stage_times(chain: BlockCosts, link: Link) -> Array:
    """[B+1, B+1] at q, b: seconds of forward and backward of blocks q … b-1, with the messages at its beginning.

    Infinite where q ≥ b.
    """
    total = np.concatenate([[0.0], np.cumsum(chain.forward_s + chain.backward_s)])
    messages = [
        link.message_s(there) + link.message_s(back) if 0 < boundary < chain.blocks else 0.0
        for boundary, (there, back) in enumerate(zip(chain.crossing_bytes, chain.gradient_bytes, strict=True))
    ]
    times: Array = total[None, :] - total[:, None] + np.array(messages)[:, None]
    times[np.tril_indices_from(times)] = math.inf
    return times


def stage_bytes(chain: BlockCosts, in_flight: int, copies: float) -> Array:
    """[B+1, B+1] at q, b: most memory of blocks q … b-1 as a stage that has `in_flight` micro-batches at a time.

    `copies` says how often each trainable parameter is there: itself, its gradient, the optimiser's state.
    """
    state = np.concatenate([[0.0], np.cumsum(copies * chain.parameter_bytes + chain.fixed_bytes)])
    working = np.zeros_like(chain.activation_bytes)
    for first in range(chain.blocks):
        working[first, first + 1 :] = np.maximum.accumulate(chain.working_bytes[first:])
    # One micro-batch more may have arrived, and gradients are on their way at both ends.
    messages = chain.crossing_bytes + chain.gradient_bytes
    held: Array = in_flight * chain.activation_bytes + working + messages[:, None] + chain.gradient_bytes[None, :]
    return state[None, :] - state[:, None] + held


def partition(times: Array, fits: Sequence[NDArray[np.bool_]]) -> tuple[float, tuple[int, ...]] | None:
    """Cut B blocks into len(fits) stages: the time of the slowest, and the inner boundaries. None where nothing fits.

    `times` [B+1, B+1] has the time of blocks q … b-1 as a stage, and `fits[s]` [B+1, B+1] whether stage s may be those.
    Dynamic programming over boundaries: the best way to end stage s at b is, over all q, the worse of the best way to
    end stage s-1 at q and of the stage q … b-1. The result is optimal.
    """
    boundaries = len(times)
    best = np.where(np.arange(boundaries) == 0, 0.0, math.inf)
    choices = []
    for fit in fits:
        worse = np.maximum(best[:, None], np.where(fit, times, math.inf))
        choices.append(worse.argmin(axis=0))
        best = worse.min(axis=0)
    if not math.isfinite(best[-1]):
        return None
    cuts = [boundaries - 1]
    for choice in reversed(choices):
        cuts.append(int(choice[cuts[-1]]))
    return float(best[-1]), tuple(reversed(cuts[1:-1]))
