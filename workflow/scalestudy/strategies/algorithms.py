"""Algorithms that sum one flat buffer over the ranks of a group, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class _Halving:
    """One swap of recursive halving, and of doubling on the way back."""

    peer: int
    keep: torch.Tensor
    give: torch.Tensor
    arriving: torch.Tensor
    """Where the peer's values of `keep` go."""


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
            self._swap(self.rank + 1, receive=scratch[: len(buffer)])
            buffer += scratch[: len(buffer)]
        self._sum(buffer, scratch, self.rank // 2 if paired else self.rank - self.pairs)
        if paired:
            self._swap(self.rank + 1, send=buffer)

    def _sum(self, buffer: torch.Tensor, scratch: torch.Tensor, position: int) -> None:
        """The algorithm proper, among `power` positions."""
        halvings = self._halvings(buffer, scratch, position)
        if buffer.device.type != "cpu":  # NCCL: what belongs together is started together
            for half in halvings:
                self._swap(half.peer, send=half.give, receive=half.arriving)
                half.keep.add_(half.arriving)
            for half in reversed(halvings):
                self._swap(half.peer, send=half.keep, receive=half.give)
            return
        # gloo sends no data before it knows that the receiver is ready. So all receives are posted before anything is
        # sent, and no message waits for such a notice. What is given away may be received into early: its sum comes
        # back from a rank that has got all of it.
        arriving = [self._post(dist.irecv, half.peer, half.arriving) for half in halvings]
        coming_back = [self._post(dist.irecv, half.peer, half.give) for half in reversed(halvings)]
        leaving = []
        for half, arrives in zip(halvings, arriving, strict=True):
            leaving += self._post(dist.isend, half.peer, half.give)
            _wait(arrives)
            half.keep.add_(half.arriving)
        for half, arrives in zip(reversed(halvings), coming_back, strict=True):
            leaving += self._post(dist.isend, half.peer, half.keep)
            _wait(arrives)
        _wait(leaving)

    def _halvings(self, buffer: torch.Tensor, scratch: torch.Tensor, position: int) -> list[_Halving]:
        """What is swapped with whom, from halves of the buffer to the smallest part."""
        halvings, distance, used = [], 1, 0
        while distance < self.power:
            parts = buffer[: len(buffer) // 2], buffer[len(buffer) // 2 :]
            give, keep = parts if position & distance else reversed(parts)
            arriving = scratch[used : used + len(keep)]
            halvings.append(_Halving(self._rank_at(position ^ distance), keep, give, arriving))
            buffer, distance, used = keep, 2 * distance, used + len(keep)
        return halvings

    def _post(self, operation: Any, peer: int, tensor: torch.Tensor) -> list[dist.Work]:
        """Start to send or receive; of empty tensors both sides know."""
        if not tensor.numel():
            return []
        return [operation(tensor, dist.get_global_rank(self.group, peer), group=self.group)]

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
        """Room for all that arrives, kept between calls: fresh memory would be paged in every time."""
        kept, room = self.scratch, buffer.numel() + self.power.bit_length()  # halves of odd lengths are rounded up
        if kept.numel() < room or kept.dtype != buffer.dtype or kept.device != buffer.device:
            self.scratch = buffer.new_empty(room)
        return self.scratch


def _wait(works: Iterable[dist.Work]) -> None:
    for work in works:
        work.wait()
