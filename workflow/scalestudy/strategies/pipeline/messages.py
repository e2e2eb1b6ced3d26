"""Tensors between neighbouring stages, and what such a message takes."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalestudy.strategies.pipeline.partition import MessageTime

UNDER_WAY = 2
LARGE = 1 << 20
SUMMED = 4 << 20
TRIES = 5


@dataclass(frozen=True)
class Parcel:
    """One tensor of a message: the value's name, its shape and dtype, and whether a gradient comes back."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    gradient: bool


class Inbox:
    """`count` messages from one rank, each of the same tensors, received one ahead of the one in use."""

    def __init__(
        self, parcels: Sequence[Parcel], peer: int, group: dist.ProcessGroup, device: torch.device, count: int
    ) -> None:
        self.parcels, self.peer, self.group, self.device, self.left = parcels, peer, group, device, count
        self.next = self._post()

    def take(self) -> list[torch.Tensor]:
        """The next message, waited for."""
        arriving, self.next = self.next, None
        assert arriving is not None, "no further message was expected"
        for work, _ in arriving:
            work.wait()
        self.next = self._post()
        return [tensor for _, tensor in arriving]

    def _post(self) -> list[tuple[dist.Work, torch.Tensor]] | None:
        if self.left == 0:
            return None
        self.left -= 1
        buffers = [torch.empty(p.shape, dtype=getattr(torch, p.dtype), device=self.device) for p in self.parcels]
        return [(posted(dist.irecv(buffer, self.peer, group=self.group)), buffer) for buffer in buffers]


class Outbox:
    """Messages to one rank; few are under way at a time, and each tensor is kept until it has gone."""

    def __init__(self, peer: int, group: dist.ProcessGroup) -> None:
        self.peer, self.group = peer, group
        self.going: deque[list[tuple[dist.Work, torch.Tensor]]] = deque()

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send without waiting for it; waits for the message before the last."""
        while len(self.going) >= UNDER_WAY:
            self._finish_one()
        dense = [tensor.detach().contiguous() for tensor in tensors]
        self.going.append([(posted(dist.isend(tensor, self.peer, group=self.group)), tensor) for tensor in dense])

    def finish(self) -> None:
        """Wait until all have gone."""
        while self.going:
            self._finish_one()

    def _finish_one(self) -> None:
        for work, _ in self.going.popleft():
            work.wait()


def posted(work: dist.Work | None) -> dist.Work:
    """The handle of an operation of a group that this rank is in."""
    assert work is not None
    return work


def measure_link(rank: int, ranks: int, group: dist.ProcessGroup, device: torch.device) -> MessageTime:
    """Latency and bandwidth between ranks 0 and 1, and of an all-reduce among all ranks: medians of some tries.

    Where there is one rank only, nothing is sent and the link is free. Called by all ranks; right on rank 0.
    """
    if ranks == 1:
        return MessageTime(0.0, 0.0)
    latency_s, large_s = (_one_way_s(rank, size, group, device) for size in (8, LARGE))
    summed, times = torch.zeros(SUMMED // 4, device=device), []
    for _ in range(1 + TRIES):  # the first makes connections
        dist.barrier(group=group)
        begin = time.perf_counter()
        dist.all_reduce(summed, group=group)
        _wait(device)
        times.append(time.perf_counter() - begin)
    part_s = statistics.median(times[1:]) / (2 * (ranks - 1))
    return MessageTime(
        latency_s, max(0.0, large_s - latency_s) / LARGE, max(0.0, part_s - latency_s) / (SUMMED / ranks)
    )


def _one_way_s(rank: int, size: int, group: dist.ProcessGroup, device: torch.device) -> float:
    """Half a round trip of `size` bytes between ranks 0 and 1; 0 on all others."""
    data, times = torch.zeros(size, dtype=torch.uint8, device=device), []
    for _ in range(1 + TRIES if rank < 2 else 0):
        begin = time.perf_counter()
        for sends in (True, False) if rank == 0 else (False, True):
            operation = dist.isend if sends else dist.irecv
            posted(operation(data, 1 - rank, group=group)).wait()
        _wait(device)
        times.append((time.perf_counter() - begin) / 2)
    return statistics.median(times[1:]) if times else 0.0


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
