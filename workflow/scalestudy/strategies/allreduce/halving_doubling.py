"""Recursive halving, then recursive doubling (Thakur et al. 2005), as Caffe2 with Gloo does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.strategies import nodes
from scalestudy.strategies.allreduce.schedule import Scheduled, Sum
from scalestudy.strategies.base import wait

PIECES, MIN_PIECE = 4, 2**18
"""Into how many messages halving-doubling cuts what it swaps, and their least size in bytes."""


class HalvingDoubling(Scheduled):
    """Halving and doubling over all ranks, of any number."""

    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """The algorithm below, over all ranks."""
        return SumByHalvingDoubling(group, nodes.everyone(self.world))


def sum_by(name: str, make_group: Callable[[], dist.ProcessGroup | None]) -> Sum | None:
    """The algorithm of that name (`Algorithm` in catalogue.py) over the ranks of a new group; None outside of it.

    Every process calls this at the same time, in the group or not.
    """
    group = make_group()
    if name == "ring":
        return None if group is None else partial(dist.all_reduce, group=group)
    second = make_group()
    return None if group is None or second is None else SumByHalvingDoubling(group, second)


@dataclass(frozen=True)
class _Turn:
    """One swap with a peer: of halves, which are summed, and later of sums."""

    peer: int
    send: torch.Tensor
    receive: torch.Tensor
    add_to: torch.Tensor | None
    """What the received values are added to; None where they are sums already, received where they belong."""


class SumByHalvingDoubling:
    """Reduce-scatter by recursive vector halving, then all-gather by recursive vector doubling.

    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (IJHPCA 19, 2005), who
    name it after Rabenseifner: 2 log2 p messages and 2 (p-1)/p of the buffer in each direction. With p no power of two,
    the first 2 (p - 2^⌊log2 p⌋) ranks form pairs that act as one, as there. Each element is summed in one place and
    handed on, so that all ranks end with the same bits.

    On gloo, `group` carries messages to higher ranks and `second`, of the same ranks, those to lower ones: with one
    connection for both directions, its ends wait for each other's lock (a seventh of the time at 25 MB).
    """

    def __init__(self, group: dist.ProcessGroup, second: dist.ProcessGroup) -> None:
        self.group, self.second = group, second
        self.rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.power = 1 << (ranks.bit_length() - 1)
        self.pairs = ranks - self.power
        self.scratch = torch.empty(0)

    def __call__(self, buffer: torch.Tensor) -> None:
        """Sum a contiguous 1-D `buffer`, of one length and dtype on all ranks, over the group."""
        nothing, scratch = buffer[:0], self._scratch_for(buffer)
        paired = self.rank < 2 * self.pairs
        if paired and self.rank % 2:
            self._take([_Turn(self.rank - 1, buffer, nothing, None), _Turn(self.rank - 1, nothing, buffer, None)])
            return
        turns = self._turns(buffer, scratch, self.rank // 2 if paired else self.rank - self.pairs)
        if paired:
            first = _Turn(self.rank + 1, nothing, scratch[: len(buffer)], buffer)
            turns = [first, *turns, _Turn(self.rank + 1, buffer, nothing, None)]
        self._take(turns)

    def _turns(self, buffer: torch.Tensor, scratch: torch.Tensor, position: int) -> list[_Turn]:
        """The algorithm proper, among `power` positions: the swaps and their peers, in order."""
        halving, doubling, distance, used = [], [], 1, len(buffer) if self.pairs else 0
        while distance < self.power:
            parts = buffer[: len(buffer) // 2], buffer[len(buffer) // 2 :]
            give, keep = parts if position & distance else reversed(parts)
            other = position ^ distance
            peer = 2 * other if other < self.pairs else other + self.pairs
            halving.append(_Turn(peer, give, scratch[used : used + len(keep)], keep))
            doubling.append(_Turn(peer, keep, give, None))
            buffer, distance, used = keep, 2 * distance, used + len(keep)
        return halving + doubling[::-1]

    def _take(self, turns: list[_Turn]) -> None:
        if turns and turns[0].send.device.type == "cpu":
            self._take_on_gloo(turns)
            return
        for turn in turns:  # NCCL: what belongs together is started together
            operations = [
                dist.P2POp(operation, tensor, group=self.group, group_peer=turn.peer)
                for operation, tensor in ((dist.irecv, turn.receive), (dist.isend, turn.send))
                if tensor.numel()
            ]
            wait(*(dist.batch_isend_irecv(operations) if operations else ()))
            if turn.add_to is not None:
                turn.add_to.add_(turn.receive)

    def _take_on_gloo(self, turns: list[_Turn]) -> None:
        """Pieces are added while the next ones arrive.

        gloo sends no data before the receiver is ready, so a receive is posted when the turn before has arrived. Posted
        earlier, a later turn would take bandwidth from data that a rank waits for already, and on slow links the sum
        would take up to 1.7 times as long.
        """
        arriving = self._receive(turns[0])
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            leaving, posted = self._send(turn), arriving
            if not posted:
                arriving = self._receive(following)
            own = turn.receive if turn.add_to is None else turn.add_to
            for work, ours, theirs in zip(posted, _pieces(own), _pieces(turn.receive), strict=True):
                work.wait()
                if work is posted[-1]:
                    arriving = self._receive(following)
                if turn.add_to is not None:
                    ours.add_(theirs)
            wait(*leaving)

    def _send(self, turn: _Turn) -> list[Any]:
        group = self.group if self.rank < turn.peer else self.second
        return [dist.isend(piece, group=group, group_dst=turn.peer) for piece in _pieces(turn.send)]

    def _receive(self, turn: _Turn | None) -> list[Any]:
        if turn is None:
            return []
        group = self.second if self.rank < turn.peer else self.group
        return [dist.irecv(piece, group=group, group_src=turn.peer) for piece in _pieces(turn.receive)]

    def _scratch_for(self, buffer: torch.Tensor) -> torch.Tensor:
        """Room for all that is added, kept between calls: fresh memory would be paged in every time."""
        kept = self.scratch
        # Halves of odd lengths are rounded up; a pair's sum comes before them.
        room = len(buffer) * (2 if self.pairs else 1) + self.power.bit_length()
        if len(kept) < room or kept.dtype != buffer.dtype or kept.device != buffer.device:
            self.scratch = buffer.new_empty(room)
        return self.scratch


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A message in pieces, as both sides cut it; none of an empty one, of which both sides know."""
    return tensor.chunk(max(1, min(PIECES, tensor.nbytes // MIN_PIECE))) if tensor.numel() else ()
