"""Which ranks share a node, groups of them, and two collectives by the names that this torch has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist

from scalestudy.strategies.base import World, group_of

# 2.7 has no `…_single`.
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""`(output, input, group=…)`: the sum over ranks, of which each has its part."""
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""`(output, input, group=…)`: every rank's part, one after the other."""


def count(world: World) -> int:
    """How many (logical) nodes the ranks fill; ranks are numbered node by node, and nodes are full."""
    return -(-world.ranks // world.ranks_per_node)


def everyone(world: World) -> dist.ProcessGroup:
    """One more group of all ranks. Every process calls this at the same time."""
    return own_group([range(world.ranks)])


def inside(world: World) -> dist.ProcessGroup:
    """The group of the ranks on this rank's node, in order. Every process calls this at the same time."""
    step = world.ranks_per_node
    return own_group([range(begin, min(begin + step, world.ranks)) for begin in range(0, world.ranks, step)])


def leaders(world: World, backend: str | None = None) -> dist.ProcessGroup | None:
    """The group of each node's first rank, None on the others. Every process calls this at the same time."""
    return group_of(range(0, world.ranks, world.ranks_per_node), backend)


def across(world: World) -> dist.ProcessGroup:
    """The group of the ranks at this rank's place on every node. Every process calls this at the same time."""
    step = world.ranks_per_node
    return own_group([range(place, world.ranks, step) for place in range(min(step, world.ranks))])


def own_group(groups: Iterable[Iterable[int]]) -> dist.ProcessGroup:
    """Make a group of each list of ranks; returns this rank's own. Every process calls this at the same time."""
    own, _ = dist.new_subgroups_by_enumeration([list(ranks) for ranks in groups])
    assert isinstance(own, dist.ProcessGroup)
    return own
