"""Algorithms that sum one flat buffer over the ranks of a group, in place."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

Sum = Callable[[torch.Tensor], None]
"""Sums a contiguous 1-D buffer, of one length and dtype on all ranks, over the ranks, in place."""


def algorithm(name: str, group: dist.ProcessGroup) -> Sum:
    """The algorithm of that name (`Algorithm` in catalogue.py) over the ranks of `group`."""
    return Ring(group) if name == "ring" else HalvingDoubling(group)


class Ring:
    """The backend's own all-reduce: gloo's is a segmented ring, NCCL chooses between ring and tree."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, buffer: torch.Tensor) -> None:
        """Sum a contiguous 1-D `buffer`, of one length and dtype on all ranks, over the group."""
        dist.all_reduce(buffer, group=self.group)


class HalvingDoubling:
    """Reduce-scatter by recursive vector halving, then all-gather by recursive vector doubling.

    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (IJHPCA 19, 2005), who
    name it after Rabenseifner: 2 log2 p messages and 2 (p-1)/p of the buffer in each direction. With p no power of two,
    the first 2 (p - 2^⌊log2 p⌋) ranks form pairs that act as one, as there. Each element is summed in one place and
    handed on, so that all ranks end with the same bits.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.power = 1 << (ranks.bit_length() - 1)
        self.pairs = ranks - self.power
        self.scratch = torch.empty(0)

    def __call__(self, buffer: torch.Tensor) -> None:
        """Sum a contiguous 1-D `buffer`, of one length and dtype on all ranks, over the group."""
        scratch = self._scratch_for(buffer)
        paired = self.rank < 2 * self.pairs
        if paired and self.rank % 2:
            self._swap(self.rank - 1, send=buffer)
            self._swap(self.rank - 1, receive=buffer)
            return
        if paired:
            self._swap(self.rank + 1, receive=scratch)
            buffer += scratch
        self._sum(buffer, scratch, self.rank // 2 if paired else self.rank - self.pairs)
        if paired:
            self._swap(self.rank + 1, send=buffer)

    def _sum(self, buffer: torch.Tensor, scratch: torch.Tensor, position: int) -> None:
        """The algorithm proper, among `power` positions."""
        begin, end, distance = 0, buffer.numel(), 1
        trail = []
        while distance < self.power:
            middle = (begin + end) // 2
            lower, upper = slice(begin, middle), slice(middle, end)
            keep, give = (upper, lower) if position & distance else (lower, upper)
            peer = self._rank_at(position ^ distance)
            self._swap(peer, send=buffer[give], receive=scratch[keep])
            buffer[keep] += scratch[keep]
            trail.append((peer, keep, give))
            begin, end, distance = keep.start, keep.stop, 2 * distance
        for peer, keep, give in reversed(trail):
            self._swap(peer, send=buffer[keep], receive=buffer[give])

    def _rank_at(self, position: int) -> int:
        return 2 * position if position < self.pairs else position + self.pairs

    def _swap(self, peer: int, send: torch.Tensor | None = None, receive: torch.Tensor | None = None) -> None:
        """Send to and receive from one rank at the same time; of empty tensors both sides know."""
        # The receive is posted first: on gloo the notice that a rank is ready would queue behind its own data, and the
        # two directions would take turns.
        operations = [
            dist.P2POp(operation, tensor, group=self.group, group_peer=peer)
            for operation, tensor in ((dist.irecv, receive), (dist.isend, send))
            if tensor is not None and tensor.numel()
        ]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()

    def _scratch_for(self, buffer: torch.Tensor) -> torch.Tensor:
        """A second buffer, kept between calls: fresh memory would be paged in every time."""
        kept = self.scratch
        if kept.numel() < buffer.numel() or kept.dtype != buffer.dtype or kept.device != buffer.device:
            self.scratch = torch.empty_like(buffer)
        return self.scratch[: buffer.numel()]
