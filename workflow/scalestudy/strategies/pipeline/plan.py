"""Which stages, how many replicas of them, how many micro-batches: chosen by predicted step time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from torch import fx

from scalestudy.strategies.pipeline import schedule
from scalestudy.strategies.pipeline.partition import (
    BlockCosts,
    MessageTime,
    between,
    partition,
    stage_bytes,
    stage_times,
)
from scalestudy.strategies.pipeline.profile import Profile, Value
from scalestudy.strategies.pipeline.trace import Traced, changes_in_place

MOST_BLOCKS = 96
MOST_MICRO_BATCHES = 128
HEADROOM = 1.1
"""Memory is planned with a tenth to spare: allocators round up and do not give all back."""


@dataclass(frozen=True)
class Devices:
    """Devices of the ranks, as far as a plan depends on them."""

    ranks: int
    rank_batch: int
    """Samples that each rank loads per step."""
    link: MessageTime
    update_s_per_byte: float
    """Time of the optimiser, per byte of parameters."""
    state_copies: float
    """How often a parameter is in memory: itself, its gradient, what the optimiser keeps of it."""
    at_once: int | None
    """How many ranks compute at a time, where there are fewer cores than ranks want."""
    limit_bytes: float | None
    """Memory of one device that a stage may use."""
    process_bytes: float = 0.0
    """What a process takes of it in addition to tensors."""


@dataclass(frozen=True)
class PlanRequest:
    """Settings that the study fixed; None is chosen."""

    schedule: schedule.Name
    stages: int | None
    micro_batches: int | None


@dataclass(frozen=True)
class PipelinePlan:
    """Stages × replicas × micro-batches, and their expected time and memory."""

    schedule: schedule.Name
    stages: int
    replicas: int
    micro_batches: int
    micro_batch: int
    """Samples of one micro-batch."""
    cuts: tuple[int, ...]
    """Positions in the chain of operators at which a new stage begins."""
    step_s: float
    """Predicted time of a step without loading."""
    stage_s: tuple[float, ...]
    """Predicted forward and backward time of each stage, one micro-batch."""
    stage_bytes: tuple[float, ...]
    """Predicted memory of each stage."""


@dataclass(frozen=True)
class Blocks:
    """A profiled model, cut into blocks wherever a stage can begin."""

    positions: tuple[int, ...]
    """Positions in the chain of operators: 0, where each block after the first begins, number of operators."""
    small: BlockCosts
    large: BlockCosts
    samples: tuple[int, int]
    """Samples of `small` and `large`."""

    def at(self, samples: int) -> BlockCosts:
        """The chain for micro-batches of so many samples."""
        few, many = self.samples
        return between(self.small, self.large, 0.0 if few == many else (samples - few) / (many - few))


def possible_cuts(traced: Traced, profile: Profile) -> list[int]:
    """Positions at which a stage can begin: only tensors cross, and nothing that is not finished.

    A value that an operator overwrites later stays with it, since autograd allows no change of a tensor that another process
    made; so do all uses of one parameter, and of one buffer that changes.
    """
    crossing, count = traced.crossing(), len(traced.operators)
    forbidden: set[int] = {0, count}
    for begin, end in _spans(traced, profile):
        forbidden |= set(range(begin + 1, end + 1))
    overwritten = [
        (position, profile.values[changed.name].root)
        for position, operator in enumerate(traced.operators)
        if (changed := changes_in_place(operator)) is not None and changed.name in profile.values
    ]
    cuts = []
    for position in range(count):
        nodes = [node for node in crossing[position] if node.name not in profile.integers]
        if position in forbidden or any(node.name not in profile.values for node in nodes):
            continue
        roots = {profile.values[node.name].root for node in nodes}
        if not any(at >= position and root in roots for at, root in overwritten):
            cuts.append(position)
    return cuts


def _spans(traced: Traced, profile: Profile) -> Iterator[tuple[int, int]]:
    """First and last operator that use one parameter or changing buffer."""
    trained = {id(parameter): name for name, parameter in traced.graph_module.named_parameters()}
    uses: dict[int, list[int]] = {}
    for position, operator in enumerate(traced.operators):
        for node in traced.attributes_of(operator):
            if id(traced.attribute(node)) in trained or str(node.target) in profile.changed:
                uses.setdefault(id(traced.attribute(node)), []).append(position)
    return ((positions[0], positions[-1]) for positions in uses.values())


def blocks(traced: Traced, small: Profile, large: Profile) -> Blocks:
    """A profiled model as blocks, at most `MOST_BLOCKS`: of cuts near each other in time the cheapest is kept."""
    cuts = possible_cuts(traced, large)
    crossing = traced.crossing()
    if len(cuts) >= MOST_BLOCKS:
        ends = np.cumsum([cost.forward_s + cost.backward_s for cost in large.costs])
        cheapest: dict[int, int] = {}
        for cut in cuts:
            slot = int(ends[cut - 1] / ends[-1] * (MOST_BLOCKS - 1))
            price = sum(_bytes(large.values, node) for node in crossing[cut])
            kept = cheapest.get(slot)
            if kept is None or price < sum(_bytes(large.values, node) for node in crossing[kept]):
                cheapest[slot] = cut
        cuts = sorted(cheapest.values())
    positions = (0, *cuts, len(traced.operators))
    few, many = (_chain(traced, profile, positions, crossing) for profile in (small, large))
    return Blocks(positions, few, many, (small.samples, large.samples))


def _bytes(values: dict[str, Value], node: fx.Node) -> int:
    value = values.get(node.name)
    return math.prod(value.shape) * value.dtype.itemsize if value else 0


def _chain(traced: Traced, profile: Profile, positions: tuple[int, ...], crossing: list[list[fx.Node]]) -> BlockCosts:
    """The blocks at one number of samples."""
    costs = [profile.costs[begin:end] for begin, end in itertools.pairwise(positions)]
    trained, fixed, largest = _held(traced, positions)
    boundaries = [[node for node in crossing[p] if node.name in profile.values] for p in positions]
    boundaries[0] = [traced.input]
    sent = [sum(_bytes(profile.values, node) for node in nodes) for nodes in boundaries]
    back = [
        sum(_bytes(profile.values, node) for node in nodes if profile.values[node.name].needs_gradient)
        for nodes in boundaries
    ]
    working = [max((cost.working_bytes for cost in block), default=0) for block in costs]
    return BlockCosts(
        np.array([sum(cost.forward_s for cost in block) for block in costs]),
        np.array([sum(cost.backward_s for cost in block) for block in costs]),
        np.array(trained, dtype=float),
        np.array(fixed, dtype=float),
        np.maximum(working, largest).astype(float),
        np.array(sent, dtype=float),
        np.array(back, dtype=float),
        _activations(profile, positions, boundaries),
    )


def _held(traced: Traced, positions: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
    """Per block: bytes of trainable parameters, of everything else that it holds, of its largest parameter."""
    trained, fixed, largest = [], [], []
    for begin, end in itertools.pairwise(positions):
        nodes = {node for operator in traced.operators[begin:end] for node in traced.attributes_of(operator)}
        tensors = {id(found): found for node in nodes if hasattr(found := traced.attribute(node), "numel")}.values()
        sizes = [(tensor.numel() * tensor.element_size(), tensor.requires_grad) for tensor in tensors]
        trained.append(sum(size for size, gradient in sizes if gradient))
        fixed.append(sum(size for size, gradient in sizes if not gradient))
        largest.append(max((size for size, gradient in sizes if gradient), default=0))
    return trained, fixed, largest


def _activations(profile: Profile, positions: tuple[int, ...], boundaries: list[list[fx.Node]]) -> np.ndarray:
    """[B+1, B+1] as `Chain.activation_bytes`: inputs, tensors kept by operators, outputs, each once."""
    count = len(positions) - 1
    bytes_of = np.zeros((count + 1, count + 1))
    roots = [{profile.values[node.name].root for node in nodes} for nodes in boundaries]
    for first in range(count):
        held, own = set(roots[first]), 0
        for block in range(first, count):
            for cost in profile.costs[positions[block] : positions[block + 1]]:
                held |= cost.keeps
                own += cost.own_bytes
            bytes_of[first, block + 1] = own + sum(profile.bytes_of.get(root, 0) for root in held | roots[block + 1])
    return bytes_of


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [one for one in range(1, number + 1) if number % one == 0]


def choose(model: Blocks, machine: Devices, wanted: PlanRequest) -> PipelinePlan | None:
    """The plan with the shortest predicted step among all that fit in memory; None where none does."""
    plans = [
        plan
        for stages in ([wanted.stages] if wanted.stages else divisors(machine.ranks))
        for micro_batches in _micro_batches(model, machine.rank_batch * stages, stages, wanted)
        if (plan := plan_for(model, machine, wanted.schedule, stages, micro_batches)) is not None
    ]
    return min(plans, key=lambda plan: plan.step_s, default=None)


def _micro_batches(model: Blocks, replica_batch: int, stages: int, wanted: PlanRequest) -> Iterable[int]:
    """Numbers of equal micro-batches worth trying: no fewer than stages, and of sizes that the profile tells about.

    A model that was traced for two samples and more is not run with one, which BatchNorm may refuse as well.
    """
    least, most = (1, 1) if model.samples == (1, 1) else (2, replica_batch)
    return [
        m
        for m in divisors(replica_batch)
        if least <= replica_batch // m <= most
        and (m == wanted.micro_batches if wanted.micro_batches else stages <= m <= MOST_MICRO_BATCHES)
    ]


def plan_for(
    model: Blocks, machine: Devices, name: schedule.Name, stages: int, micro_batches: int
) -> PipelinePlan | None:
    """The best partition for given stages and micro-batches; None where it does not fit in memory."""
    replicas, micro_batch = machine.ranks // stages, machine.rank_batch * stages // micro_batches
    chain = model.at(micro_batch)
    sizes = [
        machine.process_bytes
        + HEADROOM * stage_bytes(chain, schedule.in_flight(name, stages, stage, micro_batches), machine.state_copies)
        for stage in range(stages)
    ]
    parameters = np.concatenate([[0.0], np.cumsum(chain.parameter_bytes)])
    trains = parameters[None, :] > parameters[:, None]  # an optimiser needs something to optimise
    limit = math.inf if machine.limit_bytes is None else machine.limit_bytes
    found = partition(stage_times(chain, machine.link), [trains & (size <= limit) for size in sizes])
    if found is None:
        return None
    boundaries = [0, *found[1], chain.blocks]
    spans = list(itertools.pairwise(boundaries))
    forward_s = [float(chain.forward_s[begin:end].sum()) for begin, end in spans]
    backward_s = [float(chain.backward_s[begin:end].sum()) for begin, end in spans]
    held = [float(parameters[end] - parameters[begin]) for begin, end in spans]
    link = machine.link
    step_s = (
        (stages > 1) * 2 * link.message_s(machine.rank_batch / micro_batch * chain.crossing_bytes[0])
        + schedule.step_time(
            name,
            forward_s,
            backward_s,
            [link.message_s(chain.crossing_bytes[cut]) for cut in found[1]],
            [link.message_s(chain.gradient_bytes[cut]) for cut in found[1]],
            micro_batches,
            replicas,
            machine.at_once,
        )
        + max(link.allreduce_s(size, replicas) + size * machine.update_s_per_byte for size in held)
    )
    return PipelinePlan(
        name,
        stages,
        replicas,
        micro_batches,
        micro_batch,
        tuple(model.positions[cut] for cut in found[1]),
        float(step_s),
        tuple(f + b for f, b in zip(forward_s, backward_s, strict=True)),
        tuple(float(size[begin, end]) for size, (begin, end) in zip(sizes, spans, strict=True)),
    )


def fewest_devices(model: Blocks, machine: Devices, wanted: PlanRequest) -> int | None:
    """How many devices the model needs as one pipeline, with micro-batches as small as need be; None: it never fits."""
    batch = machine.ranks * machine.rank_batch
    for stages in range(1, model.small.blocks + 1):
        for micro_batch in [one for one in divisors(batch) if one <= machine.rank_batch]:
            alone = replace(machine, ranks=stages, rank_batch=micro_batch, at_once=None)
            if plan_for(model, alone, wanted.schedule, stages, stages) is not None:
                return stages
    return None
