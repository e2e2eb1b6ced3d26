"""When an algorithm runs: once per parameter, once for all gradients, or bucket by bucket during backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.strategies import nodes
from scalestudy.strategies.base import MakeOptimiser, Strategy, World
from scalestudy.strategies.catalogue import Scheduled as Options
from scalestudy.strategies.ddp import AllReduce, in_buckets
from scalestudy.strategies.flat import FlatBuffer

Sum = Callable[[torch.Tensor], Any]
"""Sums a contiguous 1-D buffer, of one length and dtype on all ranks, over the ranks, in place."""


class Scheduled(Strategy, ABC):
    """Gradients are summed by an algorithm, which subclasses name, and divided by the number of ranks."""

    options: Options

    def __init__(self, options: Options, world: World) -> None:
        super().__init__(options, world)
        self.overlapped = options.schedule == "overlapped"
        self.warm_up_passes = AllReduce.warm_up_passes if self.overlapped else 0
        # An overlapped exchange runs on a separate thread: on a separate group it cannot come between others.
        group = nodes.everyone(world) if self.overlapped else world.workers
        assert isinstance(group, dist.ProcessGroup)
        self.sum = self.algorithm(group)

    @abstractmethod
    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """The algorithm that sums a buffer over all ranks of `group`. Called once, by every rank."""

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """As every strategy, and room for packed gradients, or DDP's buckets around the model."""
        module = super().prepare(model, make_optimiser)
        if self.options.schedule == "flat":
            self.flat = FlatBuffer(self.trainable)
        if not self.overlapped:
            return module
        self.overlap = Overlap(self.sum, self.world.ranks, self.world.device)
        module = in_buckets(module, self.trainable, self.world.workers, self.options.bucket_mib)
        module.register_comm_hook(None, self.overlap.hook)  # type: ignore[arg-type]
        return module

    def exchange(self) -> None:
        """Make every rank's gradients their mean over ranks, unless that happened inside backward."""
        if self.overlapped:
            return
        gradients = self.gradients()  # on one rank too: the optimiser moves by those that were missing
        if self.world.ranks == 1:
            return
        if self.options.schedule == "flat":
            self.flat.pack(gradients)
            self.sum(self.flat.data)
            self.flat.data /= self.world.ranks
            self.flat.unpack(gradients)
            return
        for gradient in gradients:
            # A gradient that is contiguous already is summed where it lies, and the copy back is none.
            dense = gradient.contiguous()
            self.sum(dense.view(-1))
            dense /= self.world.ranks
            gradient.copy_(dense)

    def finish(self) -> None:
        """End the thread of an overlapped exchange."""
        if self.overlapped:
            self.overlap.end()


class Overlap:
    """Any algorithm during backward, as a hook of DDP, which hands over each full bucket, in the same order on every rank.

    On CPUs one thread does all exchanges; on GPUs a side stream (not yet run on one).
    """

    def __init__(self, sum_over_ranks: Sum, ranks: int, device: torch.device) -> None:
        self.sum, self.ranks, self.device = sum_over_ranks, ranks, device
        self.buckets: SimpleQueue[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]] | None] = SimpleQueue()
        self.thread: Thread | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)
        else:
            # A daemon, because a rank that fails must not wait for an exchange that never ends.
            self.thread = Thread(target=self._exchange_all, name="exchange", daemon=True)
            self.thread.start()

    # torch refuses annotations that are strings on a hook.
    def hook(self, _state, bucket):  # type: ignore[no-untyped-def]
        """Start the mean of one bucket; the future holds the bucket when it is done."""
        buffer = bucket.buffer()
        if self.thread is not None:
            future = torch.futures.Future()  # type: ignore[var-annotated]
            self.buckets.put((buffer, future))
            return future
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self._mean(buffer)
            future = torch.futures.Future(devices=[self.device])
            future.set_result(buffer)
        return future

    def end(self) -> None:
        """No more buckets come."""
        if self.thread is not None:
            self.buckets.put(None)
            self.thread.join()

    def _exchange_all(self) -> None:
        while (work := self.buckets.get()) is not None:
            buffer, future = work
            try:
                self._mean(buffer)
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(buffer)

    def _mean(self, buffer: torch.Tensor) -> None:
        self.sum(buffer)
        buffer /= self.ranks
