"""Order of passes: each stage's forward and backward passes, and how long a step of them takes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import chain as joined
from typing import Literal

Pass = tuple[Literal["forward", "backward"], int]
"""What a stage does next, and with which micro-batch."""


def order(stages: int, stage: int, micro_batches: int) -> list[Pass]:
    """The passes of one stage in one step: 1F1B (PipeDream-Flush, Narayanan et al. 2021).

    As soon as a micro-batch can go backward it does, so that a stage holds no more micro-batches than there are stages
    from it on.
    """
    ahead = in_flight(stages, stage, micro_batches)
    forwards: list[Pass] = [("forward", k) for k in range(micro_batches)]
    backwards: list[Pass] = [("backward", k) for k in range(micro_batches)]
    steady = joined.from_iterable(zip(backwards, forwards[ahead:], strict=False))
    return [*forwards[:ahead], *steady, *backwards[micro_batches - ahead :]]


def in_flight(stages: int, stage: int, micro_batches: int) -> int:
    """The most micro-batches that are past their forward and before the end of their backward pass."""
    return min(micro_batches, stages - stage)


def step_time(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    there_s: Sequence[float],
    back_s: Sequence[float],
    micro_batches: int,
    replicas: int = 1,
    at_once: int | None = None,
) -> float:
    """Seconds until the last backward pass ends, by playing the schedule.

    Stage s takes `forward_s[s]` and `backward_s[s]` for a micro-batch; a message from stage s to s+1 takes `there_s[s]`
    and back `back_s[s]`. All replicas do the same. No more than `at_once` ranks compute at a time, where they share
    cores; None: each has a device.
    """
    stages = len(forward_s)
    orders = [order(stages, stage, micro_batches) for stage in range(stages)]
    ranks = [(replica, stage) for replica in range(1 if at_once is None else replicas) for stage in range(stages)]
    position, free = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0.0)
    ended: dict[tuple[int, int, Pass], float] = {}
    cores = [0.0] * (len(ranks) if at_once is None else min(at_once, len(ranks)))

    def ready(rank: tuple[int, int]) -> float:
        """When a rank's next pass can begin; infinite while its inputs are missing."""
        replica, stage = rank
        if position[rank] == len(orders[stage]):
            return math.inf
        kind, k = orders[stage][position[rank]]
        if kind == "forward" and stage > 0:
            arrives = ended.get((replica, stage - 1, ("forward", k)), math.inf) + there_s[stage - 1]
        elif kind == "backward" and stage < stages - 1:
            arrives = ended.get((replica, stage + 1, ("backward", k)), math.inf) + back_s[stage]
        else:
            arrives = 0.0
        return max(free[rank], arrives)

    for _ in range(2 * micro_batches * len(ranks)):
        begin, rank = min((ready(rank), rank) for rank in ranks)
        replica, stage = rank
        what = orders[stage][position[rank]]
        begin = max(begin, heapq.heappop(cores))
        end = begin + (forward_s if what[0] == "forward" else backward_s)[stage]
        heapq.heappush(cores, end)
        ended[replica, stage, what] = free[rank] = end
        position[rank] += 1
    return max(free.values())
