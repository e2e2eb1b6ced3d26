"""torch's DistributedDataParallel: gradients in buckets, exchanged while backward goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from scalestudy.strategies.base import MakeOptimiser, Strategy
from scalestudy.strategies.catalogue import AllReduce as Options

TORCH_DEFAULT_BUCKET_MIB = 25.0


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
        size_mib = self.options.bucket_mib
        module = DistributedDataParallel(
            model,
            process_group=self.world.workers,
            # Asked for in so many words, torch's default size would also hold for the first bucket, which by default
            # is smaller to get the exchange going.
            bucket_cap_mb=None if size_mib == TORCH_DEFAULT_BUCKET_MIB else size_mib,  # type: ignore[arg-type]
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,
            init_sync=False,
        )
        if self.options.compression == "fp16":
            module.register_comm_hook(self.world.workers, default_hooks.fp16_compress_hook)
        elif self.options.compression == "bf16":
            module.register_comm_hook(self.world.workers, _bf16)
        module.register_forward_hook(self._use_all_parameters)
        return module

    def settle(self, backward: Callable[[], None]) -> None:
        """Let DDP sort its buckets: in its second forward pass, by the order of gradients in the first backward pass."""
        backward()
        backward()

    def no_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """DDP's own way to add up gradients."""
        assert isinstance(module, DistributedDataParallel)
        return module.no_sync()

    def exchange(self) -> None:
        """Nothing: it happened inside backward."""

    def _use_all_parameters(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        """Make every parameter part of the graph behind the output (a tensor, or a named tuple with `logits`).

        DDP exchanges a bucket when backward has been at all of its parameters, and waits for ever for one that the loss
        does not depend on. This gives each a further, undefined gradient, which DDP takes as zero. It costs less than
        `find_unused_parameters`, which walks the whole graph in every step.
        """
        if isinstance(output, torch.Tensor):
            return self._with_all(output)
        return output._replace(logits=self._with_all(output.logits)) if hasattr(output, "logits") else output

    def _with_all(self, logits: torch.Tensor) -> Any:
        return _Uses.apply(logits, *self.trainable) if logits.requires_grad else logits


def _bf16(group, bucket):  # type: ignore[no-untyped-def]
    # Under its own name torch's hook is refused where torch has no CUDA, though gloo sums bfloat16; and annotations
    # that are strings, as everywhere in this file, are refused as well.
    return default_hooks.bf16_compress_hook(group, bucket)


class _Uses(torch.autograd.Function):
    """The identity on its first argument, which pretends to depend on the others."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], *(None for _ in ctx.needs_input_grad[1:])
