"""A plan with all that ranks have to know to run it: what crosses each cut, and who has which parameter."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import torch
from torch import nn

from scalestudy.errors import UserError
from scalestudy.strategies.pipeline.messages import Parcel
from scalestudy.strategies.pipeline.plan import PipelinePlan
from scalestudy.strategies.pipeline.profile import Profile
from scalestudy.strategies.pipeline.trace import Traced


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


def as_tensor(layout: Layout) -> torch.Tensor:
    """A layout as bytes, for a checkpoint that holds nothing but tensors."""
    text = json.dumps(dataclasses.asdict(layout), sort_keys=True)
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)


def as_layout(data: torch.Tensor) -> Layout:
    """What `as_tensor` made bytes of."""
    plain = json.loads(bytes(data.tolist()))
    plan: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in plain["plan"].items()
    }
    boundaries = tuple(
        tuple(Parcel(**{**parcel, "shape": tuple(parcel["shape"])}) for parcel in line) for line in plain["boundaries"]
    )
    return Layout(PipelinePlan(**plan), plain["integers"], boundaries)
