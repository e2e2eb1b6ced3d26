"""A stage of a pipeline: tensors across each cut, owners of parameters, and the part of the model that one rank holds."""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.errors import UserError
from scalestudy.strategies.flat import FlatBuffer
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


@dataclasses.dataclass(frozen=True)
class Layout:
    """A plan with all that a rank has to know to run its stage without having profiled anything."""

    plan: PipelinePlan
    integers: dict[str, int]
    """Values of the operators that make integers, for the plan's micro-batch."""
    boundaries: tuple[tuple[Parcel, ...], ...]
    """What enters the first stage, what crosses each cut, what leaves the last stage."""


def owners(model: nn.Module, traced: Traced, plan: PipelinePlan) -> dict[str, int]:
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


def as_tensor(layout: Layout) -> torch.Tensor:
    """A layout as bytes, for a checkpoint that holds nothing but tensors."""
    text = json.dumps(dataclasses.asdict(layout), sort_keys=True)
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)


def as_layout(data: torch.Tensor) -> Layout:
    """The layout in the bytes of `as_tensor`."""
    plain = json.loads(bytes(data.tolist()))
    plan: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in plain["plan"].items()
    }
    boundaries = tuple(
        tuple(Parcel(**{**parcel, "shape": tuple(parcel["shape"])}) for parcel in line) for line in plain["boundaries"]
    )
    return Layout(PipelinePlan(**plan), plain["integers"], boundaries)


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
