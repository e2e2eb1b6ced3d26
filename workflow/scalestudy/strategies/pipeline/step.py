"""One step of one stage: samples handed out, micro-batches passed forward and backward, messages to the neighbours."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.strategies.base import Loss, World, wait
from scalestudy.strategies.pipeline.profile import Precision
from scalestudy.strategies.pipeline.stage import Parcel, PipelineStage

UNDER_WAY = 2
"""Messages to one rank at a time."""
Messages = list[tuple[dist.Work | None, torch.Tensor]]
"""Messages under way, with the tensors that have to be kept until then."""


class Step:
    """A step's passes; gradients are added to those of the stage's parameters."""

    def __init__(
        self, stage: PipelineStage, world: World, links: tuple[Any, Any], loss: Loss, precision: Precision
    ) -> None:
        self.stage, self.world, self.loss, self.precision = stage, world, loss, precision
        self.there, self.back = links
        """Groups of messages to the next stage, and of gradients to the one before."""
        self.value = torch.zeros((), dtype=torch.float64, device=world.device)
        """The replica's mean loss; on all stages but the last it is there after `finish`."""
        self._held: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        """By micro-batch, inputs and outputs between its forward and its backward pass."""
        self._sending: Messages = []

    def run(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """All passes, for this rank's share of the batch; returns the loss, which is there after `finish`."""
        stage = self.stage
        self._hand_out(x, y)
        self._open_boxes()
        for kind, k in stage.order:
            (self._forward if kind == "forward" else self._backward)(k)
        self._outbox_back.finish()
        self._outbox.finish()
        finish(self._sending)
        loss = dist.broadcast(self.value, stage.last, group=stage.replica_group, async_op=True)
        self._sending = [(loss, self.value)]
        return self.value

    def finish(self) -> None:
        """Wait for the loss, and until it has been sent."""
        finish(self._sending)

    @torch.no_grad()
    def _hand_out(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """This rank's share to where it is needed: on the first stage the replica's samples, on the last its labels."""
        group, rank, stages = self.world.workers, self.world.rank, self.stage.plan.stages
        # By single messages: gloo's gather would hold all shares twice, and the peak of a first stage rise.
        arriving: Messages = []
        whole: list[Sequence[torch.Tensor]] = [(), ()]
        receivers = ((x, self.stage.first), (y, self.stage.last))
        for number, (share, receiver) in enumerate(receivers):
            if rank == receiver:
                rows = share.new_empty((stages * len(share), *share.shape[1:]))
                for peer, place in enumerate(rows.split(len(share)), start=self.stage.first):
                    if peer == rank:
                        place.copy_(share)
                    else:
                        arriving.append((dist.irecv(place, peer, group=group), place))
                whole[number] = rows.chunk(self.stage.plan.micro_batches)
        for share, receiver in receivers:
            if rank != receiver:
                dense = share.contiguous()
                self._sending.append((dist.isend(dense, receiver, group=group), dense))
        finish(arriving)
        self._samples, self._labels = whole

    def _open_boxes(self) -> None:
        """Boxes of both neighbours; those of a neighbour that is not there stay empty."""
        stage, rank, device, count = self.stage, self.world.rank, self.world.device, self.stage.plan.micro_batches
        returning = [parcel for parcel in stage.outgoing if parcel.gradient]
        self._inbox = Inbox(stage.incoming, rank - 1, self.there, device, 0 if stage.is_first else count)
        self._inbox_back = Inbox(returning, rank + 1, self.back, device, 0 if stage.is_last else count)
        self._outbox, self._outbox_back = Outbox(rank + 1, self.there), Outbox(rank - 1, self.back)

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


class Inbox:
    """`count` messages from one rank, each of the same tensors, received one ahead of the one in use."""

    def __init__(
        self, parcels: Sequence[Parcel], peer: int, group: dist.ProcessGroup, device: torch.device, count: int
    ) -> None:
        self.parcels, self.peer, self.group, self.device, self.left = parcels, peer, group, device, count
        self.next = self._post()

    def take(self) -> list[torch.Tensor]:
        """The next message, waited for."""
        arriving = self.next
        finish(arriving)
        self.next = self._post()
        return [tensor for _, tensor in arriving]

    def _post(self) -> Messages:
        if self.left == 0:
            return []
        self.left -= 1
        buffers = [torch.empty(p.shape, dtype=getattr(torch, p.dtype), device=self.device) for p in self.parcels]
        return [(dist.irecv(buffer, self.peer, group=self.group), buffer) for buffer in buffers]


class Outbox:
    """Messages to one rank; few are under way at a time, and each tensor is kept until it has gone."""

    def __init__(self, peer: int, group: dist.ProcessGroup) -> None:
        self.peer, self.group = peer, group
        self.going: deque[Messages] = deque()

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send without waiting for it; waits for the message before the last."""
        while len(self.going) >= UNDER_WAY:
            finish(self.going.popleft())
        dense = [tensor.detach().contiguous() for tensor in tensors]
        self.going.append([(dist.isend(tensor, self.peer, group=self.group), tensor) for tensor in dense])

    def finish(self) -> None:
        """Wait until all have gone."""
        while self.going:
            finish(self.going.popleft())


def finish(messages: Messages) -> None:
    """Wait until messages have arrived, or have gone."""
    wait(*(work for work, _ in messages))
