"""The backend's own all-reduce, nothing overlapped by default (ChainerMN's naive and flat communicators)."""

from __future__ import annotations

import torch.distributed as dist

from scalestudy.strategies.algorithms import Ring as SumByRing
from scalestudy.strategies.algorithms import Sum
from scalestudy.strategies.scheduled import Scheduled


class Ring(Scheduled):
    """gloo's ring, or whatever NCCL chooses."""

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """One all-reduce."""
        return SumByRing(group)
