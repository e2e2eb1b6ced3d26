"""The choice that one rank makes for all: profile, look at the machine, plan."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.errors import Skipped, UserError
from scalestudy.spec.labels import counted
from scalestudy.strategies.base import MakeOptimiser, World
from scalestudy.strategies.catalogue import Pipeline as Options
from scalestudy.strategies.cost import Link
from scalestudy.strategies.pipeline.plan import Blocks, Devices, blocks, choose, fewest_devices
from scalestudy.strategies.pipeline.profile import Precision, Profile, now, profile
from scalestudy.strategies.pipeline.stage import Layout, layout_of
from scalestudy.strategies.pipeline.trace import Traced

MIB = 2**20
PROCESS_BYTES = 12 * MIB
"""On a CPU the memory that a process takes in addition to tensors while it trains counts as well: stacks, messages, loaded samples."""
TRIED_ELEMENTS = 1 << 21
TRIES = 5
SMALL, LARGE, SUMMED = 8, 1 << 20, 4 << 20
"""Bytes of the messages that time a link: one way, and summed among all ranks."""


def rows(x: torch.Tensor, count: int) -> torch.Tensor:
    """So many samples, repeated from x where it has fewer."""
    return x[torch.arange(count, device=x.device) % len(x)]


def decide(
    world: World,
    traced: Traced,
    x: torch.Tensor,
    options: Options,
    limit_mib: float | None,
    precision: Precision,
    make_optimiser: MakeOptimiser,
    group: dist.ProcessGroup,
) -> tuple[Layout, dict[str, float]]:
    """Rank 0's choice for batches like `x`, on all ranks, and the seconds that it took, by column.

    Raises UserError or Skipped, on all ranks, where there is no plan.
    """
    link, summing = measure_links(world.rank, world.ranks, group, world.device)
    small_messages = world.control or group
    cores: list[Any] = [None] * world.ranks
    dist.all_gather_object(cores, sorted(os.sched_getaffinity(0)), group=small_messages)
    # As many ranks of a node profile at a time as will compute at a time: they share caches and memory then as well.
    at_once_per_node = max(1, len(set().union(*cores)) // torch.get_num_threads())
    begin = time.perf_counter()
    if world.rank % world.ranks_per_node < at_once_per_node:
        sizes = (2, max(4, len(x))) if len(x) > 1 else (1,)
        profiles = [profile(traced, rows(x, size), precision=precision) for size in sizes]
    decided: list[Any] = [None]
    if world.rank == 0:
        times = {"profile_s": time.perf_counter() - begin}
        update_s_per_byte, slots = _optimiser_costs(make_optimiser, next(traced.graph_module.parameters()))
        on_cpu = world.device.type == "cpu"
        at_once = at_once_per_node * -(-world.ranks // world.ranks_per_node)
        machine = Devices(
            world.ranks,
            rank_batch=len(x),
            link=link,
            summing=summing,
            update_s_per_byte=update_s_per_byte,
            state_copies=2 + slots,
            at_once=at_once if on_cpu and at_once < world.ranks else None,
            limit_bytes=None if limit_mib is None else limit_mib * MIB,
            process_bytes=PROCESS_BYTES if on_cpu else 0.0,
        )
        begin = time.perf_counter()
        try:
            layout = _layout(traced, profiles[0], profiles[-1], options, machine)
            decided = [(layout, {**times, "search_s": time.perf_counter() - begin})]
        except (UserError, Skipped) as error:
            decided = [error]
    dist.broadcast_object_list(decided, 0, group=small_messages)
    (decision,) = decided
    if isinstance(decision, Exception):
        raise decision
    layout, times = decision
    return layout, times


def _layout(traced: Traced, few: Profile, many: Profile, options: Options, machine: Devices) -> Layout:
    """The layout of the best plan, which it prints for the log."""
    model = blocks(traced, few, many)
    plan = choose(model, machine, options)
    if plan is None:
        raise _why_none(model, machine, options)
    stages = ", ".join(f"{1e3 * time_s:.3g}" for time_s in plan.stage_s)
    memory = ", ".join(f"{size / MIB:.3g}" for size in plan.stage_bytes)
    print(
        f"pipeline: {plan.stages} stages x {plan.replicas} replicas, {plan.micro_batches} micro-batches of "
        f"{plan.micro_batch}; predicted step {1e3 * plan.step_s:.3g} ms, stages [{stages}] ms per "
        f"micro-batch, [{memory}] MiB; link {1e6 * machine.link.latency_s:.3g} us",
        flush=True,
    )
    return layout_of(traced, plan, few, many)


def _why_none(model: Blocks, machine: Devices, options: Options) -> UserError | Skipped:
    """Why there is no plan: an impossible request, or too little memory."""
    if options.stages and options.stages > model.small.blocks:
        what = f"the model can be cut into {model.small.blocks} stages at most, not {options.stages}"
        return UserError(what, "strategy.stages", "ask for fewer")
    if machine.limit_bytes is None:
        what = f"no choice of stages makes equal micro-batches of two samples or more of {machine.rank_batch} per rank"
        return UserError(what, "strategy", "leave `stages` or `micro_batches` unset, or use larger batches")
    devices = counted(machine.ranks, "device")
    what = f"the model does not fit in {machine.limit_bytes / MIB:,.0f} MiB on each of {devices}"
    what += f", {options.stages} stages" if options.stages else ""
    what += f", {options.micro_batches} micro-batches" if options.micro_batches else ""
    fewest = fewest_devices(model, machine)
    if fewest is None:
        return Skipped(f"{what}: one part that cannot be divided alone needs more")
    return Skipped(f"{what}: {counted(fewest, 'device')} as one pipeline with small micro-batches would do")


def _optimiser_costs(make_optimiser: MakeOptimiser, like: torch.Tensor) -> tuple[float, float]:
    """Seconds of an update and of clearing the gradient per byte of parameters, and how many copies it keeps."""
    parameter = nn.Parameter(torch.zeros(TRIED_ELEMENTS, dtype=like.dtype, device=like.device))
    parameter.grad = gradient = torch.ones_like(parameter)
    optimiser = make_optimiser([parameter])

    def update() -> None:
        optimiser.step()
        gradient.zero_()

    seconds = _median_s(update, like.device)  # the first try makes what the optimiser keeps
    slots = [slot for state in optimiser.state.values() for slot in state.values() if isinstance(slot, torch.Tensor)]
    return seconds / parameter.nbytes, sum(slot.numel() for slot in slots) / parameter.numel()


def measure_links(rank: int, ranks: int, group: dist.ProcessGroup, device: torch.device) -> tuple[Link, Link]:
    """The link between ranks 0 and 1, and as it is in an all-reduce among all ranks: medians of some tries.

    Where there is one rank only, nothing is sent and the link is free. Called by all ranks; right on rank 0.
    """
    if ranks == 1:
        return Link(math.inf), Link(math.inf)

    def one_way_s(size: int) -> float:
        """Half a round trip of `size` bytes between ranks 0 and 1; 0 on all others."""
        data = torch.zeros(size, dtype=torch.uint8, device=device)

        def round_trip() -> None:
            for operation in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
                operation(data, 1 - rank, group=group)

        return _median_s(round_trip, device) / 2 if rank < 2 else 0.0

    latency_s, large_s = one_way_s(SMALL), one_way_s(LARGE)
    summed = torch.zeros(SUMMED // 4, device=device)
    # The first try makes connections.
    part_s = _median_s(lambda: dist.all_reduce(summed, group=group), device, lambda: dist.barrier(group=group))
    part_s /= 2 * (ranks - 1)
    return (
        Link(_rate(LARGE, large_s - latency_s), latency_s),
        Link(_rate(SUMMED / ranks, part_s - latency_s), latency_s),
    )


def _rate(size: float, seconds: float) -> float:
    return size / seconds if seconds > 0 else math.inf


def _median_s(work: Callable[[], object], device: torch.device, before: Callable[[], object] | None = None) -> float:
    """Median of TRIES after one to warm up, seconds."""
    times = []
    for _ in range(1 + TRIES):
        if before is not None:
            before()
        begin = now(device)
        work()
        times.append(now(device) - begin)
    return statistics.median(times[1:])
