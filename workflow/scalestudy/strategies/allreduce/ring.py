"""The backend's own all-reduce, nothing overlapped by default (ChainerMN's naive and flat communicators)."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist

from scalestudy.strategies.allreduce.schedule import Scheduled, Sum


class Ring(Scheduled):
    """gloo's segmented ring, or NCCL's choice between ring and tree."""

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """One all-reduce."""
        return partial(dist.all_reduce, group=group)
