"""The choice that one rank makes for all: profile, look at the machine, plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from scalestudy.errors import Skipped, UserError
from scalestudy.strategies.base import MakeOptimiser, World
from scalestudy.strategies.catalogue import Pipeline as Options
from scalestudy.strategies.pipeline.partition import MessageTime
from scalestudy.strategies.pipeline.plan import (
    Blocks,
    Devices,
    PipelinePlan,
    PlanRequest,
    blocks,
    choose,
    fewest_devices,
)
from scalestudy.strategies.pipeline.profile import Profile, profile
from scalestudy.strategies.pipeline.stage import Layout, layout_of
from scalestudy.strategies.pipeline.step import TRIES
from scalestudy.strategies.pipeline.trace import Traced

MIB = 2**20
PROCESS_BYTES = 12 * MIB
"""On a CPU the memory that a process takes in addition to tensors while it trains counts as well: stacks, messages, loaded samples."""
TRIED_ELEMENTS = 1 << 21


def profiles_of(
    traced: Traced, x: torch.Tensor, precision: Callable[[], AbstractContextManager[Any]]
) -> tuple[Profile, Profile]:
    """The model at a few samples and at those of `x`, one rank's batch."""
    if len(x) == 1:
        return (one := profile(traced, x, precision=precision)), one
    few, many = (profile(traced, rows(x, size), precision=precision) for size in (2, max(4, len(x))))
    return few, many


def chosen_layout(
    traced: Traced, profiles: tuple[Profile, Profile], options: Options, machine: Devices
) -> Layout | UserError | Skipped:
    """Choose a layout; an error is returned, so that all ranks can raise it."""
    wanted = PlanRequest(options.schedule, options.stages, options.micro_batches)
    model = blocks(traced, *profiles)
    plan = choose(model, machine, wanted)
    if plan is None:
        return _why_none(model, machine, wanted)
    print(_told(plan, machine), flush=True)
    try:
        return layout_of(traced, plan, *profiles)
    except UserError as error:
        return error


def rows(x: torch.Tensor, count: int) -> torch.Tensor:
    """So many samples, repeated from x where it has fewer."""
    return x[torch.arange(count, device=x.device) % len(x)]


def machine_of(
    world: World,
    rank_batch: int,
    link: MessageTime,
    cores: int,
    limit_mib: float | None,
    make_optimiser: MakeOptimiser,
    like: torch.Tensor,
) -> Devices:
    """Devices of the ranks of `world`; `cores` are those that the ranks of this node may use together."""
    seconds_per_byte, slots = _optimiser_costs(make_optimiser, like)
    on_cpu = world.device.type == "cpu"
    at_once = at_once_per_node(cores) * -(-world.ranks // world.ranks_per_node)
    return Devices(
        world.ranks,
        rank_batch,
        link,
        seconds_per_byte,
        2 + slots,
        at_once if on_cpu and at_once < world.ranks else None,
        None if limit_mib is None else limit_mib * MIB,
        PROCESS_BYTES if on_cpu else 0.0,
    )


def at_once_per_node(cores: int) -> int:
    """How many ranks of a node can compute at a time."""
    return max(1, cores // torch.get_num_threads())


def _optimiser_costs(make_optimiser: MakeOptimiser, like: torch.Tensor) -> tuple[float, float]:
    """Seconds of an update and of clearing the gradient per byte of parameters, and how many copies it keeps."""
    parameter = nn.Parameter(torch.zeros(TRIED_ELEMENTS, dtype=like.dtype, device=like.device))
    parameter.grad = torch.ones_like(parameter)
    optimiser = make_optimiser([parameter])
    times = []
    for _ in range(1 + TRIES):  # the first makes what the optimiser keeps
        begin = time.perf_counter()
        optimiser.step()
        parameter.grad.zero_()
        if like.device.type == "cuda":
            torch.cuda.synchronize(like.device)
        times.append(time.perf_counter() - begin)
    slots = [slot for state in optimiser.state.values() for slot in state.values() if isinstance(slot, torch.Tensor)]
    kept = sum(slot.numel() for slot in slots) / parameter.numel()
    return statistics.median(times[1:]) / (parameter.numel() * parameter.element_size()), kept


def _why_none(model: Blocks, machine: Devices, wanted: PlanRequest) -> UserError | Skipped:
    """Why there is no plan: too little memory, or an impossible request."""
    if wanted.stages and wanted.stages > model.small.blocks:
        what = f"the model can be cut into {model.small.blocks} stages at most, not {wanted.stages}"
        return UserError(what, "strategy.stages", "ask for fewer")
    if machine.limit_bytes is None:
        what = f"no choice of stages makes equal micro-batches of two samples or more of {machine.rank_batch} per rank"
        return UserError(what, "strategy", "leave `stages` or `micro_batches` unset, or use larger batches")
    return _fits_nowhere(model, machine, wanted)


def _fits_nowhere(model: Blocks, machine: Devices, wanted: PlanRequest) -> Skipped:
    """Why there is no plan, and how many devices would do."""
    assert machine.limit_bytes is not None
    fewest = fewest_devices(model, machine, wanted)
    within = f"in {machine.limit_bytes / MIB:,.0f} MiB on each of {machine.ranks} {'device' if machine.ranks == 1 else 'devices'}"
    split = "".join(
        f", {value} {what}"
        for value, what in ((wanted.stages, "stages"), (wanted.micro_batches, "micro-batches"))
        if value
    )
    if fewest is None:
        return Skipped(f"the model does not fit {within}{split}: one part that cannot be divided alone needs more")
    remedy = f"{fewest} {'device' if fewest == 1 else 'devices'} as one pipeline with small micro-batches would do"
    return Skipped(f"the model does not fit {within}{split}: {remedy}")


def _told(plan: PipelinePlan, machine: Devices) -> str:
    """The plan in one line, for the log."""
    stages = ", ".join(f"{1e3 * time_s:.3g}" for time_s in plan.stage_s)
    memory = ", ".join(f"{size / MIB:.3g}" for size in plan.stage_bytes)
    return (
        f"pipeline: {plan.stages} stages x {plan.replicas} replicas, {plan.micro_batches} micro-batches of "
        f"{plan.micro_batch}, {plan.schedule}; predicted step {1e3 * plan.step_s:.3g} ms, stages [{stages}] ms per "
        f"micro-batch, [{memory}] MiB; link {1e6 * machine.link.latency_s:.3g} us"
    )
