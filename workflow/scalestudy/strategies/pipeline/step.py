"""One step of one stage: samples handed out, micro-batches passed forward and backward, messages to the neighbours."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.strategies.base import Loss, World
from scalestudy.strategies.pipeline.partition import MessageTime
from scalestudy.strategies.pipeline.stage import Parcel, PipelineStage

Sending = list[tuple[dist.Work, torch.Tensor]]
"""Messages under way, with the tensors that have to be kept until then."""


class Step:
    """A step's passes; gradients are added to those of the stage's parameters."""

    def __init__(
        self,
        stage: PipelineStage,
        world: World,
        links: tuple[Any, Any],
        loss: Loss,
        precision: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.stage, self.world, self.links, self.loss, self.precision = stage, world, links, loss, precision
        self.value = torch.zeros((), dtype=torch.float64, device=world.device)
        """The replica's mean loss; on all stages but the last it is there after `finish`."""
        self._held: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        """By micro-batch, inputs and outputs between its forward and its backward pass."""
        self._sending: Sending = []
        self._awaited: dist.Work | None = None

    def run(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """All passes, for this rank's share of the batch; returns the loss, which is there after `finish`."""
        stage = self.stage
        with torch.no_grad():
            samples, labels = self._hand_out(x, y)
        self._samples = samples.chunk(stage.plan.micro_batches) if samples is not None else ()
        self._labels = labels.chunk(stage.plan.micro_batches) if labels is not None else ()
        self._open_boxes()
        if not stage.is_last:
            self._awaited = posted(dist.irecv(self.value, stage.last, group=self.world.workers))
        for kind, k in stage.order:
            (self._forward if kind == "forward" else self._backward)(k)
        self._finish_messages()
        return self.value

    def finish(self) -> None:
        """Wait for the loss, and until it has been sent."""
        if self._awaited is not None:
            self._awaited.wait()
        for work, _ in self._sending:
            work.wait()

    def _hand_out(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """This rank's share to where it is needed: on the first stage the replica's samples, on the last its labels."""
        first, last = self.stage.first, self.stage.last
        arriving: Sending = []
        whole = [self._receive(share, receiver, arriving) for share, receiver in ((x, first), (y, last))]
        for share, receiver in ((x, first), (y, last)):
            if self.world.rank != receiver:
                dense = share.contiguous()
                self._sending.append((posted(dist.isend(dense, receiver, group=self.world.workers)), dense))
        for work, _ in arriving:
            work.wait()
        return whole[0], whole[1]

    def _receive(self, share: torch.Tensor, receiver: int, arriving: Sending) -> torch.Tensor | None:
        """On the receiver a buffer into which the shares of all ranks of the replica arrive; None elsewhere."""
        if self.world.rank != receiver:
            return None
        shape = (self.stage.plan.stages * len(share), *share.shape[1:])
        rows = torch.empty(shape, dtype=share.dtype, device=share.device)
        for rank, place in enumerate(rows.split(len(share)), start=self.stage.first):
            if rank == receiver:
                place.copy_(share)
            else:
                arriving.append((posted(dist.irecv(place, rank, group=self.world.workers)), place))
        return rows

    def _open_boxes(self) -> None:
        stage, rank, device = self.stage, self.world.rank, self.world.device
        there, back = self.links
        if not stage.is_first:
            self._inbox = Inbox(stage.incoming, rank - 1, there, device, stage.plan.micro_batches)
            self._outbox_back = Outbox(rank - 1, back)
        if not stage.is_last:
            returning = [parcel for parcel in stage.outgoing if parcel.gradient]
            self._inbox_back = Inbox(returning, rank + 1, back, device, stage.plan.micro_batches)
            self._outbox = Outbox(rank + 1, there)

    def _forward(self, k: int) -> None:
        stage = self.stage
        if stage.is_first:
            inputs = [self._samples[k]]
        else:
            inputs = self._inbox.take()
            for parcel, tensor in zip(stage.incoming, inputs, strict=True):
                tensor.requires_grad_(parcel.gradient)
        with self.precision():
            outputs = stage.module(*inputs)
        if not stage.is_last:
            self._outbox.send(outputs)
            with_gradients = [out for out, parcel in zip(outputs, stage.outgoing, strict=True) if parcel.gradient]
            self._held[k] = inputs, with_gradients
            return
        output = stage.traced.assembled(outputs)
        with self.precision():
            loss = self.loss(output, self._labels[k]) / stage.plan.micro_batches
        self.value += loss.detach()
        self._held[k] = inputs, [loss]

    def _backward(self, k: int) -> None:
        inputs, outputs = self._held.pop(k)
        gradients = None if self.stage.is_last else self._inbox_back.take()
        torch.autograd.backward(outputs, gradients)
        if not self.stage.is_first:
            needed = [tensor for tensor in inputs if tensor.requires_grad]
            self._outbox_back.send([torch.zeros_like(t) if t.grad is None else t.grad for t in needed])

    def _finish_messages(self) -> None:
        """Wait until all micro-batches have been sent, then send the loss to the replica's other stages."""
        if not self.stage.is_first:
            self._outbox_back.finish()
        if not self.stage.is_last:
            self._outbox.finish()
        for work, _ in self._sending:
            work.wait()
        self._sending = []
        if self.stage.is_last:
            for rank in range(self.stage.first, self.stage.last):
                self._sending.append((posted(dist.isend(self.value, rank, group=self.world.workers)), self.value))


UNDER_WAY = 2
LARGE = 1 << 20
SUMMED = 4 << 20
TRIES = 5


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
