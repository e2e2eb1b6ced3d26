"""A stage of a pipeline: tensors across each cut, owners of parameters, and the part of the model that one rank holds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.errors import UserError
from scalestudy.strategies.nodes import own_group
from scalestudy.strategies.pipeline import schedule
from scalestudy.strategies.pipeline.plan import PipelinePlan
from scalestudy.strategies.pipeline.profile import Profile
from scalestudy.strategies.pipeline.trace import Traced, part


@dataclass(frozen=True)
class Parcel:
    """One tensor of a message: the value's name, its shape and dtype, and whether a gradient comes back."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    gradient: bool


@dataclass(frozen=True)
class Layout:
    """A plan with all that a rank has to know to run its stage without having profiled anything."""

    plan: PipelinePlan
    integers: dict[str, int]
    """Values of the operators that make integers, for the plan's micro-batch."""
    boundaries: tuple[tuple[Parcel, ...], ...]
    """What enters the first stage, what crosses each cut, what leaves the last stage."""


def layout_of(traced: Traced, plan: PipelinePlan, small: Profile, large: Profile) -> Layout:
    """Tensors across each boundary, for the plan's micro-batch: sizes are affine in the number of samples."""

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


class PipelineStage:
    """The stage of one rank; rank = replica × stages + stage. Made by all ranks at the same time."""

    def __init__(self, layout: Layout, model: nn.Module, traced: Traced, shapes: dict[str, torch.Size], rank: int):
        self.plan, self.model, self.traced = layout.plan, model, traced
        self.shapes = shapes
        """Of the whole model's parameters, which are empty where another stage holds them."""
        stages = self.plan.stages
        self.replica, self.number = divmod(rank, stages)
        self.is_first, self.is_last = self.number == 0, self.number == stages - 1
        self.first = self.replica * stages
        """Rank of the replica's first stage, which takes samples."""
        self.last = self.first + stages - 1
        """Rank of its last one, which computes the loss."""
        self.order = schedule.order(stages, self.number, self.plan.micro_batches)
        grid = [[replica * stages + stage for stage in range(stages)] for replica in range(self.plan.replicas)]
        self.replica_group = own_group(grid)
        """The stages of this replica."""
        self.group = own_group(zip(*grid, strict=True))
        """This stage's replicas."""
        spans = list(itertools.pairwise((0, *self.plan.cuts, len(traced.operators))))
        self.owners = self._owners(spans)
        self.incoming, self.outgoing = layout.boundaries[self.number : self.number + 2]
        incoming, outgoing = ([parcel.name for parcel in parcels] for parcels in (self.incoming, self.outgoing))
        self.module = part(traced, *spans[self.number], incoming, outgoing, layout.integers)

    def _owners(self, spans: list[tuple[int, int]]) -> dict[str, int]:
        """For each parameter and buffer of the model, in its order, the stage that uses it; of unused ones, the last.

        A buffer that several stages read belongs to the first of them.
        """
        stage_of: dict[int, int] = {}
        for stage, (begin, end) in enumerate(spans):
            for operator in self.traced.operators[begin:end]:
                for node in self.traced.attributes_of(operator):
                    stage_of.setdefault(id(self.traced.attribute(node)), stage)
        return {name: stage_of.get(id(tensor), len(spans) - 1) for name, tensor in self.tensors().items()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of the whole model, by name; parameters of other stages may be empty."""
        return dict(self.model.named_parameters()) | dict(self.model.named_buffers())

    def trainable(self) -> list[nn.Parameter]:
        """Its parameters that have gradients, in the model's order."""
        named = self.model.named_parameters()
        return [p for name, p in named if self.owners[name] == self.number and p.requires_grad]

    def drop_others(self) -> None:
        """Free the parameters of all other stages."""
        for name, parameter in self.model.named_parameters():
            if self.owners[name] != self.number:
                parameter.data = parameter.data.new_empty(0)
                parameter.grad = None

    @torch.no_grad()
    def gather(self) -> None:
        """Fill in parameters and buffers of all other stages, from the replica's other ranks."""
        tensors = self.tensors()
        for name, stage in self.owners.items():
            if stage != self.number and name in self.shapes:
                tensors[name].data = tensors[name].data.new_empty(self.shapes[name])
        for name, stage in self.owners.items():
            whole = tensors[name].detach().contiguous()
            dist.broadcast(whole, self.first + stage, group=self.replica_group)
            tensors[name].copy_(whole)
