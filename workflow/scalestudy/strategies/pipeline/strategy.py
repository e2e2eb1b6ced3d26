"""One rank of a pipeline: its stage of the model, its part of each step."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.measure.memory import PeakMemory, give_back, keep_no_freed_memory
from scalestudy.strategies.base import Loss, MakeOptimiser, Strategy, World
from scalestudy.strategies.catalogue import Pipeline as Options
from scalestudy.strategies.flat import FlatBuffer
from scalestudy.strategies.pipeline import schedule
from scalestudy.strategies.pipeline.layout import Layout, as_layout, as_tensor, owners
from scalestudy.strategies.pipeline.messages import Inbox, Outbox, measure_link, posted
from scalestudy.strategies.pipeline.setup import at_once_per_node, chosen_layout, machine_of, profiles_of, rows
from scalestudy.strategies.pipeline.trace import part, trace
from scalestudy.strategies.state import kept, load_slots, slots_of

PLAN_KEY = "rank0.pipeline plan"
MIB = 2**20


class Pipeline(Strategy):
    """Pipeline parallelism of an unmodified module, times data parallelism (RaNNC in 002; GPipe; PipeDream).

    Ranks profile the module at the same time and rank 0 chooses by what it found; all then hold one stage each, rank =
    replica × stages + stage. Every rank loads its share of the global batch as under any strategy and hands the samples
    to its replica's first stage and the labels to its last. Gradients of a step are summed over micro-batches, then
    over replicas by one all-reduce per stage.

    Weights are those of one process on the global batch. BatchNorm sees one micro-batch at a time ("ghost batches"):
    the reference is one process that takes the global batch in replicas × micro-batches parts, in order. Dropout draws
    per micro-batch from each rank's own generator, so that with it no two splits make the same numbers.
    """

    options: Options
    wants_example = True
    forward_apart = False

    def __init__(self, options: Any, world: World) -> None:
        super().__init__(options, world)
        if self.options.memory_limit_mib is not None and world.device.type == "cpu":
            keep_no_freed_memory()
        load_lazily_loaded(world.device)
        self.memory = PeakMemory(world.device)
        self.peak_bytes: int | None = None
        self.steps = 0
        # Each direction has a separate group: under NCCL, messages of a pair and group go one after the other.
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
        self.traced = trace(model, rows(x, min(2, len(x))))
        self.times = {"trace_s": time.perf_counter() - begin}
        layout = self._decide(x)
        self.example = None
        return self._install(layout)

    def _decide(self, x: torch.Tensor) -> Layout:
        """Rank 0's choice, on all ranks."""
        link = measure_link(self.world.rank, self.world.ranks, self.there, self.world.device)
        cores: list[Any] = [None] * self.world.ranks
        small_messages = self.world.control or self.there
        dist.all_gather_object(cores, sorted(os.sched_getaffinity(0)), group=small_messages)
        count = len(set().union(*cores))
        begin = time.perf_counter()
        # As many at a time as will compute at a time: they share caches and memory then as well.
        if self.world.rank % self.world.ranks_per_node < at_once_per_node(count):
            profiles = profiles_of(self.traced, x, self.precision)
        decided: list[Any] = [None, None]
        if self.world.rank == 0:
            self.times["profile_s"] = time.perf_counter() - begin
            limit_mib, like = self.options.memory_limit_mib, self.trainable[0]
            machine = machine_of(self.world, self.rank_batch, link, count, limit_mib, self.make_optimiser, like)
            begin = time.perf_counter()
            layout = chosen_layout(self.traced, profiles, self.options, machine)
            self.times["search_s"] = time.perf_counter() - begin
            decided = [layout, self.times]
        dist.broadcast_object_list(decided, 0, group=small_messages)
        layout, self.times = decided
        if isinstance(layout, Exception):
            raise layout
        return layout

    def _install(self, layout: Layout) -> nn.Module:
        """Become one stage: keep its parameters, drop the others', make its groups and its optimiser."""
        self.layout, self.plan = layout, layout.plan
        plan, world = self.plan, self.world
        self.replica, self.stage = divmod(world.rank, plan.stages)
        self.first = self.replica * plan.stages
        self.last = self.first + plan.stages - 1
        self.order = schedule.order(plan.schedule, plan.stages, self.stage, plan.micro_batches)
        grid = [[replica * plan.stages + stage for stage in range(plan.stages)] for replica in range(plan.replicas)]
        self.replica_group = [_group(ranks) for ranks in grid][self.replica]
        self.stage_group = [_group(ranks) for ranks in zip(*grid, strict=True)][self.stage]
        self.owners = owners(self.model, self.traced, plan)
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
    def full_parameters(self) -> Iterator[nn.Module]:
        """Inside, every rank holds all parameters of the model."""
        self._note_peak()
        try:
            self._gather()
            yield self.model
        finally:
            self._drop_others()
            self.memory.restart()

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

    # Stopping and resuming

    def state(self) -> dict[str, torch.Tensor]:
        """As every strategy's; with the plan, so that a resumed run is split as before and computes the same bits."""
        self._note_peak()
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
            state[PLAN_KEY] = as_tensor(self.layout)
            names = {tensor: name for name, tensor in named.items()}
            for name, tensor in self.model.state_dict(keep_vars=True).items():
                if f"model.{name}" not in state:  # a second name of a tensor
                    state[f"model.{name}"] = state[f"model.{names[tensor]}"].clone()
        self.memory.restart()
        return state

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Resume from what `state` returned, split as then where there are as many ranks, else as chosen now."""
        before = as_layout(state[PLAN_KEY]) if PLAN_KEY in state else self.layout
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
            **self.times,
        }
        if self.peak_bytes is not None:
            values["device_memory_mib"] = self.peak_bytes / MIB
        return values

    def invalid_reason(self) -> str | None:
        """Whether this rank's stage kept the memory limit."""
        limit = self.options.memory_limit_mib
        if limit is None or (self.peak_bytes is not None and self.peak_bytes <= limit * MIB):
            return None
        if self.peak_bytes is None:
            return "the memory of a stage could not be measured: it takes at least two steps, and Linux or a GPU"
        used = self.peak_bytes / MIB
        return f"stage {self.stage} used {used:,.0f} MiB, more than strategy.memory_limit_mib ({limit:,.0f}) allows"


@functools.cache
def load_lazily_loaded(device: torch.device) -> None:
    """Load what tracing and training load on first use: it counts as the process's memory, not the model's.

    Cached: a process needs it once, however many strategies it makes.
    """
    tiny = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 2)).to(device)
    x = torch.zeros(2, 1, 2, 2, device=device)
    trace(tiny, x)
    tiny(x).sum().backward()


def _group(ranks: Any) -> Any:
    """A new process group; called by every rank, in the same order."""
    return dist.new_group(list(ranks))
