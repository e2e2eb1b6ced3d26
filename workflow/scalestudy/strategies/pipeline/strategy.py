"""One rank of a pipeline: its stage of the model, its part of each step."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.errors import Skipped, UserError
from scalestudy.measure.memory import PeakMemory, give_back, keep_no_freed_memory
from scalestudy.strategies.base import Loss, MakeOptimiser, Strategy, World
from scalestudy.strategies.catalogue import Pipeline as Options
from scalestudy.strategies.flat import FlatBuffer
from scalestudy.strategies.pipeline import schedule
from scalestudy.strategies.pipeline.messages import Inbox, Outbox, Parcel, measure_link, posted
from scalestudy.strategies.pipeline.partition import Link
from scalestudy.strategies.pipeline.plan import (
    PROCESS_BYTES,
    Blocks,
    Machine,
    Plan,
    Wanted,
    blocks,
    choose,
    fewest_devices,
)
from scalestudy.strategies.pipeline.profile import Profile, profile
from scalestudy.strategies.pipeline.trace import Traced, part, trace
from scalestudy.strategies.state import kept, load_slots, slots_of

PLAN_KEY = "rank0.pipeline plan"
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Layout:
    """A plan with all that a rank has to know to run its stage without having profiled anything."""

    plan: Plan
    integers: dict[str, int]
    """Values of the operators that make integers, for the plan's micro-batch."""
    boundaries: tuple[tuple[Parcel, ...], ...]
    """What enters the first stage, what crosses each cut, what leaves the last stage."""


class Pipeline(Strategy):
    """Pipeline parallelism of an unmodified module, times data parallelism (RaNNC in 002; GPipe; PipeDream).

    Rank 0 traces and profiles the module and chooses; all ranks then hold one stage each, rank = replica × stages +
    stage. Every rank loads its share of the global batch as under any strategy and hands the samples to its replica's
    first stage and the labels to its last. Gradients of a step are summed over micro-batches, then over replicas by one
    all-reduce per stage.

    Weights are those of one process on the global batch. BatchNorm sees one micro-batch at a time ("ghost batches"):
    the reference is one process that takes the global batch in replicas × micro-batches parts, in order. Dropout draws
    per micro-batch from each rank's own generator, so that with it no two splits make the same numbers.
    """

    options: Options
    wants_example = True

    def __init__(self, options: Any, world: World) -> None:
        super().__init__(options, world)
        if self.options.memory_limit_mib is not None and world.device.type == "cpu":
            keep_no_freed_memory()
        warm_up(world.device)
        self.memory = PeakMemory(world.device)
        self.peak_bytes: int | None = None
        self.steps = 0
        # Each direction has a group of its own: under NCCL, messages of a pair and group go one after the other.
        self.there, self.back = _group(range(world.ranks)), _group(range(world.ranks))

    # Setting up

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """Trace, profile, choose, keep this rank's stage; returns the stage as a module.

        Raises UserError where the model cannot be traced or split as wanted, Skipped where it does not fit in memory.
        """
        begin = time.perf_counter()
        model.train()
        self.broadcast(model)
        self.model, self.make_optimiser = model, make_optimiser
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.shapes = {name: tensor.shape for name, tensor in model.named_parameters()}
        assert self.example is not None
        x = self.example[0]
        self.rank_batch = len(x)
        self.traced = trace(model, _rows(x, min(2, len(x))))
        self.times = {"trace_s": time.perf_counter() - begin}
        layout = self._decide(x)
        self.example = None
        module = self._install(layout)
        self.times["setup_s"] = time.perf_counter() - begin
        return module

    def _decide(self, x: torch.Tensor) -> Layout:
        """Rank 0's choice, on all ranks."""
        link = measure_link(self.world.rank, self.world.ranks, self.there, self.world.device)
        cores: list[Any] = [None] * self.world.ranks
        small_messages = self.world.control or self.there
        dist.all_gather_object(cores, sorted(os.sched_getaffinity(0)), group=small_messages)
        decided: list[Any] = [None, None]
        if self.world.rank == 0:
            decided = [self._choice(x, link, len(set().union(*cores))), self.times]
        dist.broadcast_object_list(decided, 0, group=small_messages)
        layout, self.times = decided
        if isinstance(layout, Exception):
            raise layout
        return layout

    def _choice(self, x: torch.Tensor, link: Link, cores: int) -> Layout | UserError | Skipped:
        """Profile at two sizes and choose; what is wrong is returned, so that all ranks can say it."""
        begin = time.perf_counter()
        sizes = [2, max(4, len(x))] if len(x) > 1 else [1]
        profiles = [profile(self.traced, _rows(x, size), precision=self.precision) for size in sizes]
        self.times["profile_s"] = time.perf_counter() - begin
        begin = time.perf_counter()
        machine = self._machine(link, cores)
        wanted = Wanted(self.options.schedule, self.options.stages, self.options.micro_batches)
        model = blocks(self.traced, profiles[0], profiles[-1])
        if (wrong := self._impossible(model)) is not None:
            return wrong
        plan = choose(model, machine, wanted)
        self.times["search_s"] = time.perf_counter() - begin
        if plan is None:
            return _fits_nowhere(model, machine, wanted)
        print(_told(plan, machine), flush=True)
        try:
            return _layout(self.traced, plan, profiles[0], profiles[-1])
        except UserError as error:
            return error

    def _impossible(self, model: Blocks) -> UserError | None:
        stages = self.options.stages
        if stages and stages > model.small.blocks:
            what = f"`{type(self.model).__name__}` has places for {model.small.blocks} stages, not {stages}"
            return UserError(what, "strategy.stages", "ask for fewer")
        return None

    def _machine(self, link: Link, cores: int) -> Machine:
        world, limit = self.world, self.options.memory_limit_mib
        seconds_per_byte, slots = _optimiser_costs(self.make_optimiser, self.trainable[0])
        at_once = None
        if world.device.type == "cpu":
            at_once = max(1, cores // torch.get_num_threads()) * -(-world.ranks // world.ranks_per_node)
        return Machine(
            world.ranks,
            self.rank_batch,
            link,
            seconds_per_byte,
            2 + slots,
            at_once if at_once is not None and at_once < world.ranks else None,
            None if limit is None else limit * MIB,
            PROCESS_BYTES if world.device.type == "cpu" else 0.0,
        )

    def _install(self, layout: Layout) -> nn.Module:
        """Become one stage: keep its parameters, drop the others', make its groups and its optimiser."""
        self.layout, self.plan = layout, layout.plan
        plan, world = self.plan, self.world
        self.replica, self.stage = divmod(world.rank, plan.stages)
        self.first = self.replica * plan.stages
        self.last = self.first + plan.stages - 1
        self.order = schedule.order(plan.schedule, plan.stages, self.stage, plan.micro_batches)
        grid = [[replica * plan.stages + stage for stage in range(plan.stages)] for replica in range(plan.replicas)]
        self.replica_group = _mine([_group(ranks) for ranks in grid], self.replica)
        self.stage_group = _mine([_group(ranks) for ranks in zip(*grid, strict=True)], self.stage)
        self.owners = _owners(self.model, self.traced, plan)
        self.module = self._stage_module()
        own = [name for name, stage in self.owners.items() if stage == self.stage]
        parameters = dict(self.model.named_parameters())
        self.trainable = [parameters[name] for name in own if name in parameters and parameters[name].requires_grad]
        self._drop_others()
        self.gradient = FlatBuffer(self.trainable)
        self._attach_gradients()
        self.optimiser = self.make_optimiser(self.trainable)
        give_back()
        return self.module

    def _attach_gradients(self) -> None:
        """Have backward add up gradients where the all-reduce takes them from."""
        for parameter, view in zip(self.trainable, self.gradient.views, strict=True):
            parameter.grad = view

    def _stage_module(self) -> nn.Module:
        begins = (0, *self.plan.cuts, len(self.traced.operators))
        self.incoming, self.outgoing = self.layout.boundaries[self.stage : self.stage + 2]
        return part(
            self.traced,
            begins[self.stage],
            begins[self.stage + 1],
            [parcel.name for parcel in self.incoming],
            [parcel.name for parcel in self.outgoing],
            self.layout.integers,
        )

    def _drop_others(self) -> None:
        for name, parameter in self.model.named_parameters():
            if self.owners[name] != self.stage:
                parameter.data = parameter.data.new_empty(0)
                parameter.grad = None

    # A step

    def forward_backward(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss) -> torch.Tensor:
        """One step's passes of this stage. The loss is the replica's, and is there after `exchange`."""
        plan, device = self.plan, self.world.device
        self.gradient.data.zero_()
        self._attach_gradients()
        with torch.no_grad():
            samples, labels = self._hand_out(x, y)
        self.loss_function = loss
        self.held: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self.samples = samples.chunk(plan.micro_batches) if samples is not None else ()
        self.labels = labels.chunk(plan.micro_batches) if labels is not None else ()
        self.value = torch.zeros((), dtype=torch.float64, device=device)
        self.awaited = None
        back = [parcel for parcel in self.outgoing if parcel.gradient]
        if self.stage > 0:
            self.inbox = Inbox(self.incoming, self.world.rank - 1, self.there, device, plan.micro_batches)
            self.outbox_back = Outbox(self.world.rank - 1, self.back)
        if self.stage < plan.stages - 1:
            self.inbox_back = Inbox(back, self.world.rank + 1, self.back, device, plan.micro_batches)
            self.outbox = Outbox(self.world.rank + 1, self.there)
            self.awaited = posted(dist.irecv(self.value, self.last, group=self.world.workers))
        for kind, k in self.order:
            (self._forward if kind == "forward" else self._backward)(k)
        self._finish_messages()
        return self.value

    def _hand_out(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """This rank's share to where it is needed: on the first stage the replica's samples, on the last its labels."""
        whole: list[torch.Tensor | None] = []
        self.handing = []
        for share, receiver in ((x, self.first), (y, self.last)):
            if self.world.rank != receiver:
                whole.append(None)
                continue
            rows = torch.empty(
                (self.plan.stages * len(share), *share.shape[1:]), dtype=share.dtype, device=share.device
            )
            for rank, place in enumerate(rows.split(len(share)), start=self.first):
                if rank == receiver:
                    place.copy_(share)
                else:
                    self.handing.append((posted(dist.irecv(place, rank, group=self.world.workers)), place))
            whole.append(rows)
        arriving = list(self.handing)
        for share, receiver in ((x, self.first), (y, self.last)):
            if self.world.rank != receiver:
                dense = share.contiguous()
                self.handing.append((posted(dist.isend(dense, receiver, group=self.world.workers)), dense))
        for work, _ in arriving:
            work.wait()
        self.handing = self.handing[len(arriving) :]
        return whole[0], whole[1]

    def _forward(self, k: int) -> None:
        if self.stage == 0:
            inputs = [self.samples[k]]
        else:
            inputs = self.inbox.take()
            for parcel, tensor in zip(self.incoming, inputs, strict=True):
                tensor.requires_grad_(parcel.gradient)
        with self.precision():
            outputs = self.module(*inputs)
        if self.stage < self.plan.stages - 1:
            self.outbox.send(outputs)
            self.held[k] = inputs, [out for out, parcel in zip(outputs, self.outgoing, strict=True) if parcel.gradient]
            return
        output = self.traced.assembled(outputs)
        with self.precision():
            loss = self.loss_function(output, self.labels[k]) / self.plan.micro_batches
        self.value += loss.detach()
        self.held[k] = inputs, [loss]

    def _backward(self, k: int) -> None:
        inputs, outputs = self.held.pop(k)
        gradients = self.inbox_back.take() if self.stage < self.plan.stages - 1 else None
        torch.autograd.backward(outputs, gradients)
        if self.stage > 0:
            self.outbox_back.send(
                [
                    torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                    for tensor in inputs
                    if tensor.requires_grad
                ]
            )

    def _finish_messages(self) -> None:
        if self.stage > 0:
            self.outbox_back.finish()
        if self.stage < self.plan.stages - 1:
            self.outbox.finish()
        for work, _ in self.handing:
            work.wait()
        self.handing = []
        if self.world.rank == self.last:
            for rank in range(self.first, self.last):
                self.handing.append((posted(dist.isend(self.value, rank, group=self.world.workers)), self.value))

    def exchange(self) -> None:
        """Make the stage's gradients their mean over replicas: one all-reduce."""
        if self.plan.replicas > 1:
            dist.all_reduce(self.gradient.data, group=self.stage_group)
            self.gradient.data /= self.plan.replicas
        if self.awaited is not None:
            self.awaited.wait()
        for work, _ in self.handing:
            work.wait()

    def update(self) -> None:
        """Apply the gradients. Memory counts from the second step on, when all that a step needs is there."""
        super().update()
        self.steps += 1
        if self.steps == 1:
            self.memory.restart()

    # The whole model

    @contextmanager
    def whole(self) -> Iterator[nn.Module]:
        """The model with all its parameters on every rank, for as long as this lasts."""
        self._note_peak()
        self._gather()
        yield self.model
        self._drop_others()
        self.memory.restart()

    def finish(self) -> None:
        """Give every rank all parameters, each replica its own, so that replicas can be compared."""
        self._note_peak()
        self._gather()

    def _note_peak(self) -> None:
        peak = self.memory.bytes() if self.steps > 1 else None
        if peak is not None:
            self.peak_bytes = max(peak, self.peak_bytes or 0)

    @torch.no_grad()
    def _gather(self) -> None:
        tensors = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        for name, stage in self.owners.items():
            if stage != self.stage and name in self.shapes:
                tensors[name].data = tensors[name].data.new_empty(self.shapes[name])
        for stage in range(self.plan.stages):
            for dtype in {tensor.dtype for tensor in tensors.values()}:
                own = [tensors[n] for n, owner in self.owners.items() if owner == stage and tensors[n].dtype == dtype]
                if own:
                    flat = FlatBuffer(own)
                    flat.pack(own)
                    dist.broadcast(flat.data, self.first + stage, group=self.replica_group)
                    flat.unpack(own)

    # Stopping and going on

    def state(self) -> dict[str, torch.Tensor]:
        """As every strategy's; with the plan, so that a run that goes on is split as before and makes the same bits."""
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        stored = self.model.state_dict()
        of_stage = [name for name, stage in self.owners.items() if stage == self.stage and name in stored]
        buffers = {name: kept(named[name]) for name in of_stage if name not in self.shapes}
        part = buffers
        if self.replica == 0:
            part = buffers | {name: kept(named[name]) for name in of_stage if name in self.shapes}
        gathered = self.gather((part, slots_of(self.optimiser, self.model) if self.replica == 0 else {}))
        state: dict[str, torch.Tensor] = {}
        for rank, (tensors, slots) in enumerate(gathered):
            own = f"rank{rank}" if rank >= self.plan.stages else "model"
            state |= {f"{own}.{name}": tensor for name, tensor in tensors.items()} | slots
        if gathered:
            state[PLAN_KEY] = _as_tensor(self.layout)
        return state

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from what `state` returned, split as then where there are as many ranks, else as chosen now."""
        before = _as_layout(state[PLAN_KEY]) if PLAN_KEY in state else self.layout
        if before != self.layout and before.plan.stages * before.plan.replicas == self.world.ranks:
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.data = parameter.data.new_empty(self.shapes[name])
            self._install(before)
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        with torch.no_grad():
            for name, stage in self.owners.items():
                if f"model.{name}" in state and stage == self.stage:
                    named[name].copy_(state.get(f"rank{self.world.rank}.{name}", state[f"model.{name}"]))
        load_slots(self.optimiser, self.model, state)

    # What is measured

    def measured(self) -> dict[str, float]:
        """What was chosen, what was expected of it, what setting up took, and the memory of this rank's stage."""
        plan = self.plan
        values = {
            "stages": float(plan.stages),
            "replicas": float(plan.replicas),
            "micro_batches": float(plan.micro_batches),
            "predicted_step_time_s": plan.step_s,
            "predicted_memory_mib": max(plan.stage_bytes) / MIB,
            **{name: value for name, value in self.times.items() if name != "setup_s"},
        }
        if self.peak_bytes is not None:
            values["device_memory_mib"] = self.peak_bytes / MIB
        return values

    def doubt(self) -> str | None:
        """Whether this rank's stage kept the memory limit."""
        limit = self.options.memory_limit_mib
        if limit is None or (self.peak_bytes is not None and self.peak_bytes <= limit * MIB):
            return None
        if self.peak_bytes is None:
            return "the memory of a stage could not be measured: it takes at least two steps, and Linux or a GPU"
        used = self.peak_bytes / MIB
        return f"stage {self.stage} used {used:,.0f} MiB, more than strategy.memory_limit_mib ({limit:,.0f}) allows"


def warm_up(device: torch.device) -> None:
    """Load what tracing and training load on first use, so that it counts as the process's memory, not the model's."""
    tiny = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 2)).to(device)
    x = torch.zeros(2, 1, 2, 2, device=device)
    trace(tiny, x)
    tiny(x).sum().backward()


def _group(ranks: Any) -> Any:
    """A process group of its own; called by every rank, in the same order."""
    return dist.new_group(list(ranks))


def _mine(groups: list[Any], index: int) -> Any:
    return groups[index]


def _rows(x: torch.Tensor, count: int) -> torch.Tensor:
    """So many samples, repeated from x where it has fewer."""
    return x[torch.arange(count, device=x.device) % len(x)]


def _owners(model: nn.Module, traced: Traced, plan: Plan) -> dict[str, int]:
    """For each parameter and buffer of the model, in its order, the stage that uses it; of unused ones, the last.

    A buffer that several stages read belongs to the first of them.
    """
    begins = (0, *plan.cuts, len(traced.operators))
    stage_of: dict[int, int] = {}
    for stage, (begin, end) in enumerate(itertools.pairwise(begins)):
        for operator in traced.operators[begin:end]:
            for node in traced.attributes_of(operator):
                stage_of.setdefault(id(traced.attribute(node)), stage)
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: stage_of.get(id(tensor), plan.stages - 1) for name, tensor in named}


def _layout(traced: Traced, plan: Plan, small: Profile, large: Profile) -> Layout:
    """What crosses each boundary, for the plan's micro-batch: sizes are affine in the number of samples."""

    def at(one: int, other: int) -> int:
        if one == other:
            return one
        more, remainder = divmod((other - one) * (plan.micro_batch - small.samples), large.samples - small.samples)
        if remainder:
            what = f"between {small.samples} and {large.samples} samples a size of the model goes from {one} to {other}"
            raise UserError(what, "model", "a pipeline needs sizes that grow evenly with the number of samples")
        return one + more

    def parcel(name: str) -> Parcel:
        few, many = small.values[name], large.values[name]
        shape = tuple(at(one, other) for one, other in zip(few.shape, many.shape, strict=True))
        return Parcel(name, shape, str(few.dtype).removeprefix("torch."), few.needs_gradient)

    crossing = traced.crossing()
    integers = {name: at(value, large.integers[name]) for name, value in small.integers.items()}
    names = [
        [traced.input.name],
        *([node.name for node in crossing[cut] if node.name not in integers] for cut in plan.cuts),
        list(dict.fromkeys(node.name for node in traced.outputs if node is not None)),
    ]
    return Layout(plan, integers, tuple(tuple(map(parcel, line)) for line in names))


def _as_tensor(layout: Layout) -> torch.Tensor:
    """A layout as bytes, for a checkpoint that holds nothing but tensors."""
    text = json.dumps(dataclasses.asdict(layout), sort_keys=True)
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)


def _as_layout(data: torch.Tensor) -> Layout:
    """What `_as_tensor` made bytes of."""
    plain = json.loads(bytes(data.tolist()))
    plan: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in plain["plan"].items()
    }
    boundaries = tuple(
        tuple(Parcel(**{**parcel, "shape": tuple(parcel["shape"])}) for parcel in line) for line in plain["boundaries"]
    )
    return Layout(Plan(**plan), plain["integers"], boundaries)


def _optimiser_costs(make_optimiser: MakeOptimiser, like: torch.Tensor) -> tuple[float, float]:
    """Seconds of an update per byte of parameters, and how many copies of a parameter the optimiser keeps."""
    parameter = nn.Parameter(torch.zeros(LARGE_UPDATE, dtype=like.dtype, device=like.device))
    parameter.grad = torch.ones_like(parameter)
    optimiser = make_optimiser([parameter])
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        optimiser.step()
        if like.device.type == "cuda":
            torch.cuda.synchronize(like.device)
        times.append(time.perf_counter() - begin)
    slots = [slot for state in optimiser.state.values() for slot in state.values() if isinstance(slot, torch.Tensor)]
    kept = sum(slot.numel() for slot in slots) / parameter.numel()
    return min(times) / (parameter.numel() * parameter.element_size()), kept


LARGE_UPDATE = 1 << 18


def _fits_nowhere(model: Blocks, machine: Machine, wanted: Wanted) -> Skipped:
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


def _told(plan: Plan, machine: Machine) -> str:
    """The plan in one line, for the log."""
    stages = ", ".join(f"{1e3 * time_s:.3g}" for time_s in plan.stage_s)
    memory = ", ".join(f"{size / MIB:.3g}" for size in plan.stage_bytes)
    return (
        f"pipeline: {plan.stages} stages x {plan.replicas} replicas, {plan.micro_batches} micro-batches of "
        f"{plan.micro_batch}, {plan.schedule}; predicted step {1e3 * plan.step_s:.3g} ms, stages [{stages}] ms per "
        f"micro-batch, [{memory}] MiB; link {1e6 * machine.link.latency_s:.3g} us"
    )
