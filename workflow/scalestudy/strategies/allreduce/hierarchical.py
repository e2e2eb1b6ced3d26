"""All-reduce in three parts: inside each node, between one leader per node, inside each node."""

from __future__ import annotations

import torch
import torch.distributed as dist

from scalestudy.strategies import nodes
from scalestudy.strategies.allreduce.halving_doubling import sum_by
from scalestudy.strategies.allreduce.schedule import Scheduled, Sum
from scalestudy.strategies.catalogue import Hierarchical as Options


class Hierarchical(Scheduled):
    """One rank per node exchanges with other nodes; ChainerMN's `hierarchical` (Akiba et al., arXiv 1710.11351).

    For clusters where NCCL cannot use the network between nodes (Takenaka et al., Table 2, row (c)): with
    `outer_transport: gloo` leaders exchange through host memory, and GPUs of a node by NCCL. Not yet run on GPUs.
    """

    options: Options

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """The levels as one algorithm; groups of a node's ranks and of the leaders take the place of `group`."""
        options, world = self.options, self.world
        self.inside = nodes.inside(world)
        self.several = nodes.count(world) > 1
        backend = "gloo" if options.outer_transport == "gloo" else None
        self.through_host = backend is not None and world.device.type == "cuda"
        self.between = sum_by(options.outer, lambda: nodes.leaders(world, backend))
        return self._sum

    def _sum(self, buffer: torch.Tensor) -> None:
        dist.reduce(buffer, group=self.inside, group_dst=0)
        if self.between is not None and self.several:
            host = buffer.cpu() if self.through_host else buffer
            self.between(host)
            if self.through_host:
                buffer.copy_(host)
        dist.broadcast(buffer, group=self.inside, group_src=0)
