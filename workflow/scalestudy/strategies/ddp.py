"""torch's DistributedDataParallel: gradients in buckets, exchanged during backward."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from scalestudy.strategies.base import MakeOptimiser, Strategy
from scalestudy.strategies.catalogue import AllReduce as Options

TORCH_DEFAULT_BUCKET_MIB = 25.0
PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
# torch before 2.13 calls it `broadcast_buffers`, which newer ones warn of.
NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in PARAMETERS else "broadcast_buffers": False
}


class AllReduce(Strategy):
    """Ring all-reduce of gloo or NCCL, bucket by bucket, overlapped with backward (Li et al., VLDB 2020).

    BatchNorm's running statistics stay each rank's own. With compression, gradients are divided by the number of ranks,
    rounded, and summed in the narrow type.
    """

    options: Options
    overlapped = True
    warm_up_passes = 2
    """In its second forward pass DDP sorts its buckets, by the order of gradients in the first backward pass.

    With other buckets the last bits of a sum can differ.
    """

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """As every strategy, and DDP around the model."""
        super().prepare(model, make_optimiser)
        module = in_buckets(model, self.trainable, self.world.workers, self.options.bucket_mib)
        if self.options.compression == "fp16":
            module.register_comm_hook(self.world.workers, default_hooks.fp16_compress_hook)
        elif self.options.compression == "bf16":
            module.register_comm_hook(self.world.workers, _bf16)
        return module


def _bf16(group, bucket):  # type: ignore[no-untyped-def]
    # Under its own name torch's hook is refused where torch has no CUDA, though gloo sums bfloat16; and annotations
    # that are strings, as everywhere in this file, are refused as well.
    return default_hooks.bf16_compress_hook(group, bucket)


def in_buckets(
    model: nn.Module, trainable: list[nn.Parameter], group: dist.ProcessGroup | None, bucket_mib: float
) -> DistributedDataParallel:
    """DDP that neither broadcasts nor synchronises anything but gradients, in buckets of `bucket_mib` MiB."""
    module = DistributedDataParallel(
        model,
        process_group=group,
        # torch's default, given as a number, would also hold for the first bucket, which by default is smaller to get
        # the exchange going.
        bucket_cap_mb=None if bucket_mib == TORCH_DEFAULT_BUCKET_MIB else bucket_mib,  # type: ignore[arg-type]
        gradient_as_bucket_view=True,
        **NO_BUFFERS,
        init_sync=False,
    )

    def use_all(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        logits = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
        if logits is None or not logits.requires_grad:
            return output
        logits = _Uses.apply(logits, *trainable)  # type: ignore[no-untyped-call]
        return logits if isinstance(output, torch.Tensor) else output._replace(logits=logits)

    module.register_forward_hook(use_all)
    return module


class _Uses(torch.autograd.Function):
    """The identity on its first argument, which pretends to depend on the others: all trainable parameters.

    DDP exchanges a bucket when backward has been at all of its parameters, and waits for ever for one that the loss
    does not depend on. This gives each a further, undefined gradient, which DDP takes as zero. It costs less than
    `find_unused_parameters`, which walks the whole graph in every step.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], *(None for _ in ctx.needs_input_grad[1:])
