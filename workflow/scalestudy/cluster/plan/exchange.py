"""Time of one step's exchange, by the strategy's formula (strategies/cost.py) over the machine's links."""

from __future__ import annotations

from scalestudy.spec.machine import Machine, geometry
from scalestudy.spec.run import RunSpec
from scalestudy.strategies import cost
from scalestudy.strategies.cost import Link

BACKWARD_SHARE = 2 / 3
"""Share of a step without exchange that the backward pass takes: it computes twice as much as the forward pass."""
OVERLAPPED = ("allreduce", "horovod", "fsdp")
"""Strategies that exchange during the backward pass; of the others those whose schedule says so."""
FSDP_BYTES = 1.5
"""Bytes of two all-gathers and a reduce-scatter over those of an all-reduce (Zhao et al., PyTorch FSDP, VLDB 2023)."""


def overlaps(spec: RunSpec) -> bool:
    """Whether a run's exchange may hide behind its backward pass."""
    return spec.strategy.name in OVERLAPPED or getattr(spec.strategy, "schedule", "") == "overlapped"


def exchange_time(spec: RunSpec, machine: Machine, size: float) -> float | None:
    """Seconds to exchange `size` bytes of gradients once at the full rate of the links; None where a rate is not known,
    or the strategy has no formula (pipeline)."""
    nodes, per_node = geometry(spec, machine)
    gb_per_s = machine.device_link_gb_per_s and machine.device_link_gb_per_s / 2  # that of both directions together
    if spec.strategy.name == "pipeline" or not size or (per_node > 1 and not gb_per_s):
        return None
    if nodes > 1 and not machine.network_gb_per_s:
        return None
    inside = Link(1e9 * (gb_per_s or machine.network_gb_per_s or 0.0))
    between = Link(1e9 * machine.network_gb_per_s) if machine.network_gb_per_s else inside
    strategy, ranks, place = spec.strategy, spec.ranks, (nodes, per_node, inside, between)
    if "server" in strategy.name:
        formula = cost.parameter_server if strategy.servers_beside else cost.colocated_server
        return formula(size, ranks, getattr(strategy, "servers", 1), between)
    is_power_of_two = not ranks & (ranks - 1)
    hierarchical = {"hierarchical": cost.hierarchical, "two_dimensional": cost.two_dimensional}
    halving = {"halving_doubling": cost.flat_halving_doubling} if is_power_of_two else {}
    seconds: float = {**hierarchical, **halving}.get(strategy.name, cost.flat_ring)(size, *place)
    return FSDP_BYTES * seconds if strategy.name == "fsdp" else seconds
