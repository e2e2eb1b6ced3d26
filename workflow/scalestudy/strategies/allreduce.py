"""torch's DistributedDataParallel: gradients in buckets, exchanged during backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from scalestudy.strategies.base import MakeOptimiser, Strategy
from scalestudy.strategies.buckets import in_buckets
from scalestudy.strategies.catalogue import AllReduce as Options


class AllReduce(Strategy):
    """Ring all-reduce of gloo or NCCL, bucket by bucket, overlapped with backward (Li et al., VLDB 2020).

    BatchNorm's running statistics stay each rank's own. With compression, gradients are divided by the number of ranks,
    rounded, and summed in the narrow type. DDP sorts its buckets anew after the first backward pass of a process; with
    other buckets the last bits of a sum can differ, so that pass is made before the first step.
    """

    options: Options
    overlapped = True

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """As every strategy, and DDP around the model."""
        super().prepare(model, make_optimiser)
        module = in_buckets(model, self.trainable, self.world.workers, self.options.bucket_mib)
        if self.options.compression == "fp16":
            module.register_comm_hook(self.world.workers, default_hooks.fp16_compress_hook)
        elif self.options.compression == "bf16":
            module.register_comm_hook(self.world.workers, _bf16)
        return module

    def warm_up(self, backward: Callable[[], None]) -> None:
        """Let DDP sort its buckets: in its second forward pass, by the order of gradients in the first backward pass."""
        backward()
        backward()

    def no_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """DDP's own way to add up gradients."""
        assert isinstance(module, DistributedDataParallel)
        return module.no_sync()

    def exchange(self) -> None:
        """Nothing: it happened inside backward."""


def _bf16(group, bucket):  # type: ignore[no-untyped-def]
    # Under its own name torch's hook is refused where torch has no CUDA, though gloo sums bfloat16; and annotations
    # that are strings, as everywhere in this file, are refused as well.
    return default_hooks.bf16_compress_hook(group, bucket)
