"""The backend's own all-reduce, nothing overlapped by default (ChainerMN's naive and flat communicators)."""

from __future__ import annotations

import torch
import torch.distributed as dist

from scalestudy.strategies.scheduled import Scheduled, Sum


class Ring(Scheduled):
    """gloo's ring, or whatever NCCL chooses."""

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """One all-reduce."""
        return SumByRing(group)


class SumByRing:
    """The backend's own all-reduce: gloo's is a segmented ring, NCCL chooses between ring and tree."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, buffer: torch.Tensor) -> None:
        """Sum a contiguous 1-D `buffer`, of one length and dtype on all ranks, over the group."""
        dist.all_reduce(buffer, group=self.group)
