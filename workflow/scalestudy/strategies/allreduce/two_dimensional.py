"""Reduce-scatter in the node, all-reduce of each part between nodes, all-gather in the node."""

from __future__ import annotations

import torch
import torch.distributed as dist

from scalestudy.strategies import nodes
from scalestudy.strategies.allreduce.halving_doubling import sum_by
from scalestudy.strategies.allreduce.schedule import Scheduled, Sum
from scalestudy.strategies.catalogue import TwoDimensional as Options
from scalestudy.strategies.nodes import all_gather, reduce_scatter


class TwoDimensional(Scheduled):
    """Every rank exchanges a part of the buffer with its like on other nodes (ChainerMN's `two_dimensional`).

    Akiba et al., arXiv 1710.11351. All ranks of a node share its link, and each byte crosses it as often as with
    `hierarchical`; it spares the waiting of the leaders' colleagues.
    """

    options: Options

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """The three phases as one algorithm; groups along and across the nodes take the place of `group`."""
        world = self.world
        self.inside = nodes.inside(world)
        self.parts = dist.get_world_size(self.inside)
        self.between = None
        if nodes.count(world) > 1:
            self.between = sum_by(self.options.outer, lambda: nodes.across(world))
        self.padded = torch.empty(0)
        return self._sum

    def _sum(self, buffer: torch.Tensor) -> None:
        whole = self._divisible(buffer)
        part = whole.new_empty(whole.numel() // self.parts)
        reduce_scatter(part, whole, group=self.inside)
        if self.between is not None:
            self.between(part)
        all_gather(whole, part, group=self.inside)
        if whole is not buffer:
            buffer.copy_(whole[: buffer.numel()])

    def _divisible(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer, or a copy with zeros at its end, of a length that the node's ranks can share equally."""
        missing = -buffer.numel() % self.parts
        if not missing:
            return buffer
        length, kept = buffer.numel() + missing, self.padded
        if kept.numel() != length or kept.dtype != buffer.dtype or kept.device != buffer.device:
            self.padded = buffer.new_zeros(length)
        self.padded[: buffer.numel()] = buffer
        self.padded[buffer.numel() :] = 0
        return self.padded
