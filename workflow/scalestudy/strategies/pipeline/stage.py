"""One rank's stage of a pipeline: its place among replicas and stages, and which part of the model it holds."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.strategies.flat import FlatBuffer
from scalestudy.strategies.pipeline import schedule
from scalestudy.strategies.pipeline.layout import Layout, owners
from scalestudy.strategies.pipeline.trace import Traced, part


class PipelineStage:
    """The stage of one rank; rank = replica × stages + stage. Made by all ranks at the same time."""

    def __init__(self, layout: Layout, model: nn.Module, traced: Traced, shapes: dict[str, torch.Size], rank: int):
        self.layout, self.plan, self.model, self.traced = layout, layout.plan, model, traced
        self.shapes = shapes
        """Of the whole model's parameters, which are empty where another stage holds them."""
        plan = self.plan
        self.replica, self.number = divmod(rank, plan.stages)
        self.first = self.replica * plan.stages
        """Rank of the replica's first stage."""
        self.last = self.first + plan.stages - 1
        self.order = schedule.order(plan.schedule, plan.stages, self.number, plan.micro_batches)
        grid = [[replica * plan.stages + stage for stage in range(plan.stages)] for replica in range(plan.replicas)]
        self.replica_group = [new_group(ranks) for ranks in grid][self.replica]
        """The stages of this replica."""
        self.group = [new_group(ranks) for ranks in zip(*grid, strict=True)][self.number]
        """This stage's replicas."""
        self.owners = owners(model, traced, plan)
        self.incoming, self.outgoing = layout.boundaries[self.number : self.number + 2]
        self.module = self._module()

    @property
    def is_first(self) -> bool:
        """Whether it takes samples."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether it computes the loss."""
        return self.number == self.plan.stages - 1

    def trainable(self) -> list[nn.Parameter]:
        """Its parameters that have gradients, in the model's order."""
        parameters = dict(self.model.named_parameters())
        own = [parameters[name] for name, stage in self.owners.items() if stage == self.number and name in parameters]
        return [parameter for parameter in own if parameter.requires_grad]

    def drop_others(self) -> None:
        """Free the parameters of all other stages."""
        for name, parameter in self.model.named_parameters():
            if self.owners[name] != self.number:
                parameter.data = parameter.data.new_empty(0)
                parameter.grad = None

    @torch.no_grad()
    def gather(self) -> None:
        """Fill in parameters and buffers of all other stages, from the replica's other ranks."""
        tensors = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        for name, stage in self.owners.items():
            if stage != self.number and name in self.shapes:
                tensors[name].data = tensors[name].data.new_empty(self.shapes[name])
        for stage in range(self.plan.stages):
            for dtype in {tensor.dtype for tensor in tensors.values()}:
                own = [tensors[n] for n, owner in self.owners.items() if owner == stage and tensors[n].dtype == dtype]
                if own:
                    flat = FlatBuffer(own)
                    flat.pack(own)
                    dist.broadcast(flat.data, self.first + stage, group=self.replica_group)
                    flat.unpack(own)

    def _module(self) -> nn.Module:
        begins = (0, *self.plan.cuts, len(self.traced.operators))
        return part(
            self.traced,
            begins[self.number],
            begins[self.number + 1],
            [parcel.name for parcel in self.incoming],
            [parcel.name for parcel in self.outgoing],
            self.layout.integers,
        )


def new_group(ranks: Any) -> Any:
    """A new process group; called by every rank, in the same order."""
    return dist.new_group(list(ranks))
