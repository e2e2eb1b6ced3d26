"""Exposed exchange: the time that an exchange overlapped with the backward pass adds to a step.

Steps with the exchange and steps without it (`no_sync`) take turns after the window, without updates.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist

from scalestudy.training.replica import Replica

MIN_PAIRS, MAX_PAIRS = 3, 10
MIN_BUDGET_S, MAX_SHARE = 3.0, 0.05
"""Time that the pairs may take: seconds, or a share of the training's so far where that is more."""


def pairs_of_steps(replica: Replica, step_s: float, trained_s: float) -> list[tuple[float, float]]:
    """Seconds of a step with the exchange and of the one without beside it, the slowest rank's.

    Called by all ranks that train, after the last step; buffers and random states stay. Empty where nothing overlaps, where
    an exchange cannot be held back, and where a few pairs would take too long.
    """
    strategy, world, spec = replica.strategy, replica.world, replica.spec
    if not strategy.overlapped or not strategy.can_hold_back or spec.batch.accumulate > 1:
        return []
    count = min(MAX_PAIRS, int(max(MIN_BUDGET_S, MAX_SHARE * trained_s) / (2 * step_s)))
    if world.device.type == "cuda" and torch.cuda.mem_get_info(world.device)[0] < replica.state_bytes:
        count = 0  # gradients that are held back are whole
    agreed = torch.tensor(count, device=world.device)
    dist.all_reduce(agreed, dist.ReduceOp.MIN, group=world.workers)
    if int(agreed) < MIN_PAIRS:
        return []
    x, y = replica.held_out_batch(spec.rank_batch)

    def timed(exchanging: bool) -> float:
        """Seconds of one forward and backward pass, with the rest of the exchange."""
        dist.barrier(group=world.workers)
        if replica.emulator is not None:
            replica.emulator.synchronise()
        begin = time.perf_counter()
        with nullcontext() if exchanging else strategy.no_exchange(replica.module):
            replica.forward_backward(x, y)
        if exchanging:
            strategy.exchange()
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        return time.perf_counter() - begin

    pairs = []
    with replica.undisturbed():
        for pair in range(int(agreed)):
            seconds = {exchanging: timed(exchanging) for exchanging in ((True, False) if pair % 2 else (False, True))}
            pairs.append((seconds[True], seconds[False]))
    slowest = torch.tensor(pairs, dtype=torch.float64, device=world.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=world.workers)
    return [(exchanging, alone) for exchanging, alone in slowest.tolist()]
