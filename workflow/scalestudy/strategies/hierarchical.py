"""All-reduce in three parts: inside each node, between one leader per node, inside each node."""

from __future__ import annotations

import torch
import torch.distributed as dist

from scalestudy.strategies import nodes
from scalestudy.strategies.base import World
from scalestudy.strategies.catalogue import Hierarchical as Options
from scalestudy.strategies.halving_doubling import sum_by
from scalestudy.strategies.scheduled import Scheduled, Sum


class Hierarchical(Scheduled):
    """One rank per node exchanges with other nodes; ChainerMN's `hierarchical` (Akiba et al., arXiv 1710.11351).

    For clusters where NCCL cannot use the network between nodes (Takenaka et al., Table 2, row (c)): with
    `outer_transport: gloo` leaders exchange through host memory, and GPUs of a node by NCCL. Not yet run on GPUs.
    """

    options: Options

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """The two levels as one algorithm; groups of a node's ranks and of the leaders take the place of `group`."""
        return _TwoLevels(self.options, self.world)


class _TwoLevels:
    """Sums over a node, over nodes, and hands the sum to the node's ranks."""

    def __init__(self, options: Options, world: World) -> None:
        self.inside = nodes.inside(world)
        self.several = nodes.count(world) > 1
        backend = "gloo" if options.outer_transport == "gloo" else None
        self.through_host = backend is not None and world.device.type == "cuda"
        leaders = nodes.leaders(world, backend)
        self.between = sum_by(options.outer, leaders, lambda: nodes.leaders(world, backend))
        self.within = None
        if options.inner != "reduce":
            self.within = sum_by(options.inner, self.inside, lambda: nodes.inside(world))

    def __call__(self, buffer: torch.Tensor) -> None:
        """Sum a contiguous 1-D `buffer`, of one length and dtype on all ranks, over all ranks."""
        if self.within is None:
            dist.reduce(buffer, group=self.inside, group_dst=0)
        else:
            self.within(buffer)
            if not self.several:
                return
        if self.between is not None and self.several:
            self._sum_between(buffer)
        dist.broadcast(buffer, group=self.inside, group_src=0)

    def _sum_between(self, buffer: torch.Tensor) -> None:
        assert self.between is not None
        if not self.through_host:
            self.between(buffer)
            return
        host = buffer.cpu()
        self.between(host)
        buffer.copy_(host)
