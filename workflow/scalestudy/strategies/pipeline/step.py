"""One step of one stage: samples handed out, micro-batches passed forward and backward, messages to the neighbours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.strategies.base import Loss, World
from scalestudy.strategies.pipeline.messages import Inbox, Outbox, posted
from scalestudy.strategies.pipeline.stage import PipelineStage

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
