"""When an algorithm runs: once per parameter, once for all gradients, or bucket by bucket during backward."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalestudy.strategies import nodes
from scalestudy.strategies.algorithms import Sum
from scalestudy.strategies.base import MakeOptimiser, Strategy, World
from scalestudy.strategies.buckets import in_buckets
from scalestudy.strategies.catalogue import Scheduled as Options
from scalestudy.strategies.flat import FlatBuffer
from scalestudy.strategies.overlap import Overlap


class Scheduled(Strategy):
    """Gradients are summed by an algorithm, which subclasses name, and divided by the number of ranks."""

    options: Options

    def __init__(self, options: Options, world: World) -> None:
        super().__init__(options, world)
        self.overlapped = options.schedule == "overlapped"
        # An overlapped exchange runs on a separate thread: on a separate group it cannot come between others.
        group = nodes.everyone(world) if self.overlapped else world.workers
        assert isinstance(group, dist.ProcessGroup)
        self.sum = self.algorithm(group)

    @abstractmethod
    def algorithm(self, group: dist.ProcessGroup) -> Sum:
        """What sums a buffer over all ranks, which `group` holds. Called once, by every rank."""

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

    def warm_up(self, backward: Callable[[], None]) -> None:
        """Let DDP sort its buckets, as with `allreduce`."""
        if self.overlapped:
            backward()
            backward()

    def no_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """Where gradients are only added up, DDP's buckets wait."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def exchange(self) -> None:
        """Make every rank's gradients their mean over ranks, unless that happened inside backward; one rank's are that."""
        if self.overlapped:
            return
        # On one rank too: those that are missing are made, as on many, for the optimiser moves by them.
        gradients = self.gradients()
        if self.world.ranks == 1:
            return
        if self.options.schedule == "flat":
            self._exchange_flat(gradients)
        else:
            self._exchange_per_parameter(gradients)

    def finish(self) -> None:
        """End the thread of an overlapped exchange."""
        if self.overlapped:
            self.overlap.end()

    def _exchange_flat(self, gradients: list[torch.Tensor]) -> None:
        self.flat.pack(gradients)
        self.sum(self.flat.data)
        self.flat.data /= self.world.ranks
        self.flat.unpack(gradients)

    def _exchange_per_parameter(self, gradients: list[torch.Tensor]) -> None:
        for gradient in gradients:
            # A gradient that is contiguous already is summed where it lies, and the copy back is none.
            dense = gradient.contiguous()
            self.sum(dense.view(-1))
            dense /= self.world.ranks
            gradient.copy_(dense)
