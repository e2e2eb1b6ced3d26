"""DistributedDataParallel around a model, for those strategies that exchange gradients in buckets during backward."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TORCH_DEFAULT_BUCKET_MIB = 25.0
PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
# torch before 2.13 calls it `broadcast_buffers`, which newer ones warn of.
NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in PARAMETERS else "broadcast_buffers": False
}


def in_buckets(
    model: nn.Module, trainable: list[nn.Parameter], group: dist.ProcessGroup | None, bucket_mib: float
) -> DistributedDataParallel:
    """DDP that neither broadcasts nor synchronises anything but gradients, in buckets of `bucket_mib` MiB."""
    module = DistributedDataParallel(
        model,
        process_group=group,
        # Asked for in so many words, torch's default size would also hold for the first bucket, which by default
        # is smaller to get the exchange going.
        bucket_cap_mb=None if bucket_mib == TORCH_DEFAULT_BUCKET_MIB else bucket_mib,  # type: ignore[arg-type]
        gradient_as_bucket_view=True,
        **NO_BUFFERS,
        init_sync=False,
    )
    module.register_forward_hook(_UseAll(trainable))
    return module


class _UseAll:
    """Makes every parameter part of the graph behind the output (a tensor, or a named tuple with `logits`).

    DDP exchanges a bucket when backward has been at all of its parameters, and waits for ever for one that the loss
    does not depend on. This gives each a further, undefined gradient, which DDP takes as zero. It costs less than
    `find_unused_parameters`, which walks the whole graph in every step.
    """

    def __init__(self, trainable: list[nn.Parameter]) -> None:
        self.trainable = trainable

    def __call__(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return self._with_all(output)
        return output._replace(logits=self._with_all(output.logits)) if hasattr(output, "logits") else output

    def _with_all(self, logits: torch.Tensor) -> Any:
        return _Uses.apply(logits, *self.trainable) if logits.requires_grad else logits


class _Uses(torch.autograd.Function):
    """The identity on its first argument, which pretends to depend on the others."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], *(None for _ in ctx.needs_input_grad[1:])
