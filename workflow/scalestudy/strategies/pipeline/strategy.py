"""One rank of a pipeline: choosing the plan, stepping, stopping and resuming, measuring."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import nn

from scalestudy.measure.allocator import trim
from scalestudy.measure.memory import PeakMemory
from scalestudy.strategies.base import Loss, MakeOptimiser, Strategy, World, kept, slots_of
from scalestudy.strategies.catalogue import Pipeline as Options
from scalestudy.strategies.flat import FlatBuffer
from scalestudy.strategies.nodes import everyone
from scalestudy.strategies.pipeline.setup import MIB, decide, rows
from scalestudy.strategies.pipeline.stage import Layout, PipelineStage
from scalestudy.strategies.pipeline.step import Step
from scalestudy.strategies.pipeline.trace import trace

PLAN_KEY = "rank0.pipeline plan"
PEAK_KEY = "rank{}.pipeline peak"
LAYOUT = TypeAdapter(Layout)
"""To and from the bytes of a checkpoint, which holds nothing but tensors."""


class Pipeline(Strategy):
    """Pipeline parallelism of an unmodified module, times data parallelism (RaNNC, GPipe, PipeDream).

    Ranks profile the module at the same time and rank 0 chooses by its profile; all then hold one stage each, rank =
    replica × stages + stage. Every rank loads its share of the global batch as under any strategy and hands the samples
    to its replica's first stage and the labels to its last. Gradients of a step are summed over micro-batches, then
    over replicas by one all-reduce per stage.

    Weights are those of one process on the global batch. BatchNorm sees one micro-batch at a time ("ghost batches"):
    the reference is one process that takes the global batch in replicas × micro-batches parts, in order. Dropout draws
    per micro-batch from each rank's own generator, so that with it no two splits make the same numbers.
    """

    options: Options
    wants_example = True
    whole_parameters = False

    def __init__(self, options: Any, world: World) -> None:
        super().__init__(options, world)
        load_lazily_loaded(world.device)
        self.memory = PeakMemory(world.device)
        self.peak_bytes: int | None = None
        self.steps = 0
        # Each direction has a separate group: under NCCL, messages of a pair and group go one after the other.
        self.there, self.back = everyone(world), everyone(world)

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """Trace, profile, choose, keep this rank's stage; returns the stage as a module.

        Raises UserError where the model cannot be traced or split as wanted, Skipped where it does not fit in memory.
        """
        begin = time.perf_counter()
        model.train()
        self.distribute(model)
        self.model, self.make_optimiser = model, make_optimiser
        self.shapes = {name: tensor.shape for name, tensor in model.named_parameters()}
        assert self.example is not None
        x = self.example[0]
        self.traced = trace(model, rows(x, min(2, len(x))))
        trace_s = time.perf_counter() - begin
        layout, times = decide(
            self.world,
            self.traced,
            x,
            self.options,
            self.memory_limit_mib,
            self.precision,
            self.make_optimiser,
            self.there,
        )
        self.times, self.example = {"trace_s": trace_s, **times}, None
        return self._install(layout)

    def _install(self, layout: Layout) -> nn.Module:
        """Become one stage: keep its parameters, drop the others', make its groups and its optimiser."""
        self.stage = PipelineStage(layout, self.model, self.traced, self.shapes, self.world.rank)
        self.layout, self.plan, self.module = layout, layout.plan, self.stage.module
        self.trainable = self.stage.trainable()
        self.stage.drop_others()
        self.gradient = FlatBuffer(self.trainable)
        self.optimiser = self.make_optimiser(self.trainable)
        trim()
        return self.module

    def forward_backward(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss) -> torch.Tensor:
        """One step's passes of this stage. The loss is the replica's, and is there after `exchange`."""
        self.gradient.data.zero_()
        for parameter, view in zip(self.trainable, self.gradient.views, strict=True):
            parameter.grad = view  # backward adds up gradients where the all-reduce takes them from
        self.step = Step(self.stage, self.world, (self.there, self.back), loss, self.precision)
        return self.step.run(x, y)

    def exchange(self) -> None:
        """Make the stage's gradients their mean over replicas: one all-reduce."""
        if self.plan.replicas > 1:
            dist.all_reduce(self.gradient.data, group=self.stage.group)
            self.gradient.data /= self.plan.replicas
        self.step.finish()

    def update(self) -> None:
        """Apply the gradients. Memory counts from the second step on, when all that a step needs is there."""
        super().update()
        self.steps += 1
        if self.steps == 1:
            self.memory.restart()

    @contextmanager
    def full_parameters(self) -> Iterator[nn.Module]:
        """Inside, every rank holds all parameters of the model."""
        self._note_peak()
        try:
            self.stage.gather()
            yield self.model
        finally:
            self.stage.drop_others()
            self.memory.restart()

    def _note_peak(self) -> None:
        peak = self.memory.bytes() if self.steps > 1 else None
        if peak is not None:
            self.peak_bytes = max(peak, self.peak_bytes or 0)

    def state(self) -> dict[str, torch.Tensor]:
        """As every strategy's; with the plan, so that a resumed run is split as before and computes the same bits."""
        self._note_peak()
        named, stored, stage = self.stage.tensors(), self.model.state_dict(), self.stage
        of_stage = [name for name, owner in stage.owners.items() if owner == stage.number and name in stored]
        whole = stage.replica == 0  # of the other replicas only buffers, which are their own
        part = {name: kept(named[name]) for name in of_stage if whole or name not in self.shapes}
        gathered = self.gather((part, slots_of(self.optimiser, self.model) if whole else {}, self.peak_bytes or 0))
        state: dict[str, torch.Tensor] = {}
        for rank, (tensors, slots, peak_bytes) in enumerate(gathered):
            state[PEAK_KEY.format(rank)] = torch.tensor(peak_bytes)
            own = f"rank{rank}" if rank >= self.plan.stages else "model"
            state |= {f"{own}.{name}": tensor for name, tensor in tensors.items()} | slots
        if gathered:
            state[PLAN_KEY] = torch.frombuffer(bytearray(LAYOUT.dump_json(self.layout)), dtype=torch.uint8)
            names = {tensor: name for name, tensor in named.items()}
            for name, tensor in self.model.state_dict(keep_vars=True).items():
                if f"model.{name}" not in state:  # a second name of a tensor
                    state[f"model.{name}"] = state[f"model.{names[tensor]}"].clone()
        self.memory.restart()
        return state

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Resume from the result of `state`, split as then where there are as many ranks, else as chosen now."""
        before = LAYOUT.validate_json(bytes(state[PLAN_KEY].tolist())) if PLAN_KEY in state else self.layout
        if before != self.layout and before.plan.stages * before.plan.replicas == self.world.ranks:
            self.stage.gather()
            self._install(before)
        named = self.stage.tensors()
        with torch.no_grad():
            for name, stage in self.stage.owners.items():
                if f"model.{name}" in state and stage == self.stage.number:
                    named[name].copy_(state.get(f"rank{self.world.rank}.{name}", state[f"model.{name}"]))
        self.load_optimiser_state(state)
        if before == self.layout and (peak := state.get(PEAK_KEY.format(self.world.rank))) is not None:
            self.peak_bytes = int(peak) or None

    def measured(self) -> dict[str, float]:
        """The choice, its expectation, the set-up time, and the memory of this rank's stage."""
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


@functools.cache
def load_lazily_loaded(device: torch.device) -> None:
    """Load the libraries that tracing and training load on first use: it counts as the process's memory, not the model's.

    Cached: a process needs it once, however many strategies it makes.
    """
    tiny = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 2)).to(device)
    x = torch.zeros(2, 1, 2, 2, device=device)
    trace(tiny, x)
    tiny(x).sum().backward()
