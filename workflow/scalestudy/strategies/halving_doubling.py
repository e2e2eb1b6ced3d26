"""Recursive halving, then recursive doubling (Thakur et al. 2005), as Caffe2 with Gloo does."""

from __future__ import annotations

import torch.distributed as dist

from scalestudy.strategies import nodes
from scalestudy.strategies.algorithms import HalvingDoubling as SumByHalvingDoubling
from scalestudy.strategies.algorithms import Sum
from scalestudy.strategies.scheduled import Scheduled


class HalvingDoubling(Scheduled):
    """Any number of ranks; see the algorithm."""

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """Halving and doubling over all ranks."""
        return SumByHalvingDoubling(group, nodes.everyone(self.world))
