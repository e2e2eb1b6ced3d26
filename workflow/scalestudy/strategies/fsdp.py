"""torch's fully_shard: every rank keeps a part of weights, gradients and optimiser's state (ZeRO stage 3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from scalestudy.errors import Skipped
from scalestudy.strategies.base import Strategy
from scalestudy.strategies.catalogue import FSDP as Options

SUPPORTED = hasattr(FSDPModule, "set_reshard_after_forward")
"""Whether this torch's shards are known to give one process's weights."""


class FSDP(Strategy):
    """Weights are gathered layer by layer for forward and backward, gradients reduced and scattered meanwhile.

    Zhao et al., VLDB 2023; this is its second version in torch, in which each parameter is sharded by itself.
    """

    options: Options
    overlapped = True
    whole_parameters = False

    def distribute(self, model: nn.Module) -> None:
        """Give all ranks rank 0's weights, and shard them in place.

        Raises Skipped with a torch of which shards were found to differ from one process's weights.
        """
        if not SUPPORTED:
            raise Skipped(f"strategy `fsdp` needs torch 2.8 or newer; this is torch {torch.__version__}")
        super().distribute(model)
        assert isinstance(self.world.workers, dist.ProcessGroup)
        mesh = DeviceMesh.from_group(self.world.workers, self.world.device.type)
        for unit in units(model, self.options.unit_mib * 2**20):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)

    @contextmanager
    def no_exchange(self, module: nn.Module) -> Iterator[None]:
        """Where gradients are only added up, whole ones stay on every rank."""
        assert isinstance(module, FSDPModule)
        module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)

    @contextmanager
    def full_parameters(self) -> Iterator[nn.Module]:
        """Inside, all weights are gathered and stay so: ranks may call the model as often as each likes."""
        sharded = [module for module in self.model.modules() if isinstance(module, FSDPModule)]
        try:
            for module in sharded:
                module.set_reshard_after_forward(False, recurse=False)
                module.unshard()
            yield self.model
        finally:
            for module in sharded:
                module.set_reshard_after_forward(True, recurse=False)
                module.reshard()

    def whole(self, value: Any) -> torch.Tensor:
        """As every strategy, put together from all ranks' shards."""
        return super().whole(value.full_tensor() if isinstance(value, DTensor) else value)

    def part_of(self, value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """`value` sharded as `like` is, where it has one value per weight. No rank sends anything."""
        if not isinstance(like, DTensor) or value.shape != like.shape:
            return value
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def units(model: nn.Module, least_bytes: float) -> list[nn.Module]:
    """The modules with weights that are gathered at one time: innermost first, containers opened, none with too little."""
    modules: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            modules += units(child, least_bytes)
        elif (size := sum(parameter.nbytes for parameter in child.parameters())) >= least_bytes and size > 0:
            modules.append(child)
    return modules
