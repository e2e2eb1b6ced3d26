"""Which stages, how many replicas of them, how many micro-batches: chosen by predicted step time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from torch import fx

from scalestudy.strategies.catalogue import Pipeline as Options
from scalestudy.strategies.cost import Link, ring
from scalestudy.strategies.pipeline import schedule
from scalestudy.strategies.pipeline.partition import Array, BlockCosts, between, partition, stage_bytes, stage_times
from scalestudy.strategies.pipeline.profile import Profile
from scalestudy.strategies.pipeline.trace import Traced, changes_in_place

MAX_BLOCKS = 96
MAX_MICRO_BATCHES = 128
HEADROOM = 1.1
"""Memory is planned with a tenth to spare: allocators round up and do not give all back."""


@dataclass(frozen=True)
class Devices:
    """Devices of the ranks, as far as a plan depends on them."""

    ranks: int
    rank_batch: int
    """Samples that each rank loads per step."""
    link: Link
    summing: Link
    """The link as it is while ranks sum: both directions at once, and adding."""
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
class PipelinePlan:
    """Stages × replicas × micro-batches, and their expected time and memory."""

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


# From a profile to blocks


def possible_cuts(traced: Traced, profile: Profile) -> list[int]:
    """Positions at which a stage can begin: only tensors cross, and nothing that is not finished.

    A value that an operator overwrites later stays with it, since autograd allows no change of a tensor that another process
    made; so do all uses of one parameter, and of one buffer that changes.
    """
    crossing, forbidden = traced.crossing(), {0}
    for begin, end in _spans(traced, profile):
        forbidden |= set(range(begin + 1, end + 1))
    overwritten = [
        (position, profile.values[changed.name].root)
        for position, operator in enumerate(traced.operators)
        if (changed := changes_in_place(operator)) is not None and changed.name in profile.values
    ]
    cuts = []
    for position in range(len(traced.operators)):
        nodes = [node for node in crossing[position] if node.name not in profile.integers]
        if position in forbidden or any(node.name not in profile.values for node in nodes):
            continue
        roots = {profile.values[node.name].root for node in nodes}
        if not any(at >= position and root in roots for at, root in overwritten):
            cuts.append(position)
    return cuts


def _spans(traced: Traced, profile: Profile) -> Iterator[tuple[int, int]]:
    """First and last operator that use one parameter or changing buffer."""
    trained = {id(parameter) for parameter in traced.graph_module.parameters()}
    uses: dict[int, list[int]] = {}
    for position, operator in enumerate(traced.operators):
        for node in traced.attributes_of(operator):
            if id(traced.attribute(node)) in trained or str(node.target) in profile.changed:
                uses.setdefault(id(traced.attribute(node)), []).append(position)
    return ((positions[0], positions[-1]) for positions in uses.values())


def blocks(traced: Traced, small: Profile, large: Profile) -> Blocks:
    """A profiled model as blocks, at most `MAX_BLOCKS`: of cuts near each other in time the cheapest is kept."""
    cuts, crossing = possible_cuts(traced, large), traced.crossing()
    if len(cuts) >= MAX_BLOCKS:
        ends = np.cumsum([cost.forward_s + cost.backward_s for cost in large.costs])
        cheapest: dict[int, tuple[int, int]] = {}
        for cut in cuts:
            slot = int(ends[cut - 1] / ends[-1] * (MAX_BLOCKS - 1))
            price = sum(_bytes(large, node) for node in crossing[cut])
            cheapest[slot] = min(cheapest.get(slot, (price, cut)), (price, cut))
        cuts = sorted(cut for _, cut in cheapest.values())
    positions = (0, *cuts, len(traced.operators))
    few, many = (_chain(traced, profile, positions, crossing) for profile in (small, large))
    return Blocks(positions, few, many, (small.samples, large.samples))


def _bytes(profile: Profile, node: fx.Node) -> int:
    value = profile.values.get(node.name)
    return math.prod(value.shape) * value.dtype.itemsize if value else 0


def _chain(traced: Traced, profile: Profile, positions: tuple[int, ...], crossing: list[list[fx.Node]]) -> BlockCosts:
    """The blocks at one number of samples."""
    spans = list(itertools.pairwise(positions))
    costs = [profile.costs[begin:end] for begin, end in spans]
    boundaries = [[node for node in crossing[p] if node.name in profile.values] for p in positions]
    boundaries[0] = [traced.input]
    returning = [[node for node in nodes if profile.values[node.name].needs_gradient] for nodes in boundaries]
    trained, fixed, working = [], [], []
    for (begin, end), block in zip(spans, costs, strict=True):
        nodes = {node for operator in traced.operators[begin:end] for node in traced.attributes_of(operator)}
        tensors = {id(value): value for node in nodes if hasattr(value := traced.attribute(node), "nbytes")}.values()
        parameters = [tensor.nbytes for tensor in tensors if tensor.requires_grad]
        trained.append(sum(parameters))
        fixed.append(sum(tensor.nbytes for tensor in tensors if not tensor.requires_grad))
        working.append(max([0, *parameters, *(cost.working_bytes for cost in block)]))

    def array(values: list[int]) -> Array:
        return np.array(values, dtype=float)

    return BlockCosts(
        np.array([sum(cost.forward_s for cost in block) for block in costs]),
        np.array([sum(cost.backward_s for cost in block) for block in costs]),
        array(trained),
        array(fixed),
        array(working),
        array([sum(_bytes(profile, node) for node in nodes) for nodes in boundaries]),
        array([sum(_bytes(profile, node) for node in nodes) for nodes in returning]),
        _activations(profile, positions, boundaries),
    )


def _activations(profile: Profile, positions: tuple[int, ...], boundaries: list[list[fx.Node]]) -> Array:
    """[B+1, B+1] as `BlockCosts.activation_bytes`: inputs, tensors kept by operators, outputs, each once."""
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


# The choice


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [one for one in range(1, number + 1) if number % one == 0]


def choose(model: Blocks, machine: Devices, options: Options) -> PipelinePlan | None:
    """The plan with the shortest predicted step among all that fit in memory; None where none does."""
    plans = [
        plan
        for stages in ([options.stages] if options.stages else divisors(machine.ranks))
        for micro_batches in _micro_batches(model, machine.rank_batch * stages, stages, options)
        if (plan := plan_for(model, machine, stages, micro_batches)) is not None
    ]
    return min(plans, key=lambda plan: plan.step_s, default=None)


def _micro_batches(model: Blocks, replica_batch: int, stages: int, options: Options) -> list[int]:
    """Numbers of equal micro-batches worth trying: no fewer than stages, and of sizes that the profile tells about.

    A model that was traced for two samples and more is not run with one, which BatchNorm may refuse as well.
    """
    least, most = (1, 1) if model.samples == (1, 1) else (2, replica_batch)
    return [
        m
        for m in divisors(replica_batch)
        if least <= replica_batch // m <= most
        and (m == options.micro_batches if options.micro_batches else stages <= m <= MAX_MICRO_BATCHES)
    ]


def plan_for(model: Blocks, machine: Devices, stages: int, micro_batches: int) -> PipelinePlan | None:
    """The best partition for given stages and micro-batches; None where it does not fit in memory."""
    replicas, micro_batch = machine.ranks // stages, machine.rank_batch * stages // micro_batches
    chain, link = model.at(micro_batch), machine.link
    sizes = [
        machine.process_bytes
        + HEADROOM * stage_bytes(chain, schedule.in_flight(stages, stage, micro_batches), machine.state_copies)
        for stage in range(stages)
    ]
    parameters = np.concatenate([[0.0], np.cumsum(chain.parameter_bytes)])
    trains = parameters[None, :] > parameters[:, None]  # an optimiser needs something to optimise
    limit = math.inf if machine.limit_bytes is None else machine.limit_bytes
    solution = partition(stage_times(chain, link), [trains & (size <= limit) for size in sizes])
    if solution is None:
        return None
    cuts = solution[1]
    spans = list(itertools.pairwise([0, *cuts, chain.blocks]))
    forward_s = [float(chain.forward_s[begin:end].sum()) for begin, end in spans]
    backward_s = [float(chain.backward_s[begin:end].sum()) for begin, end in spans]
    there_s = [link.message_s(chain.crossing_bytes[cut]) for cut in cuts]
    back_s = [link.message_s(chain.gradient_bytes[cut]) for cut in cuts]
    held = [float(parameters[end] - parameters[begin]) for begin, end in spans]
    handed_out_s = 2 * link.message_s(machine.rank_batch / micro_batch * chain.crossing_bytes[0]) if stages > 1 else 0.0
    passes_s = schedule.step_time(forward_s, backward_s, there_s, back_s, micro_batches, replicas, machine.at_once)
    summed_s = max(ring(size, replicas, machine.summing) + size * machine.update_s_per_byte for size in held)
    return PipelinePlan(
        stages,
        replicas,
        micro_batches,
        micro_batch,
        tuple(model.positions[cut] for cut in cuts),
        float(handed_out_s + passes_s + summed_s),
        tuple(f + b for f, b in zip(forward_s, backward_s, strict=True)),
        tuple(float(size[begin, end]) for size, (begin, end) in zip(sizes, spans, strict=True)),
    )


def fewest_devices(model: Blocks, machine: Devices) -> int | None:
    """How many devices the model needs as one pipeline, with micro-batches as small as need be; None: it never fits."""
    batch = machine.ranks * machine.rank_batch
    for stages in range(1, model.small.blocks + 1):
        for micro_batch in [one for one in divisors(batch) if one <= machine.rank_batch]:
            alone = replace(machine, ranks=stages, rank_batch=micro_batch, at_once=None)
            if plan_for(model, alone, stages, stages) is not None:
                return stages
    return None
