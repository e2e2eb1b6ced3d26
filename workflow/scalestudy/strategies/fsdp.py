"""torch's fully_shard: every rank keeps a part of weights, gradients and optimiser's state (ZeRO stage 3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from scalestudy.errors import Skipped
from scalestudy.strategies.base import MakeOptimiser, Strategy, kept, slots_for
from scalestudy.strategies.catalogue import FSDP as Options

SUPPORTED = hasattr(FSDPModule, "set_reshard_after_forward")
"""Whether this torch's shards are known to give one process's weights."""


class FSDP(Strategy):
    """Weights are gathered layer by layer for forward and backward, gradients reduced and scattered meanwhile.

    Zhao et al., VLDB 2023; this is its second version in torch, in which each parameter is sharded by itself.
    """

    options: Options
    overlapped = True
    forward_apart = False
    whole_parameters = False

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """Give all ranks rank 0's weights, shard them in place, build the optimiser over the shards.

        Raises Skipped with a torch of which shards were found to differ from one process's weights.
        """
        if not SUPPORTED:
            raise Skipped(f"strategy `fsdp` needs torch 2.8 or newer; this is torch {torch.__version__}")
        self.broadcast(model)
        assert isinstance(self.world.workers, dist.ProcessGroup)
        mesh = DeviceMesh.from_group(self.world.workers, self.world.device.type)
        for unit in units(model, self.options.unit_mib * 2**20):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        self.model = model
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimiser = make_optimiser(self.trainable)
        return model

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

    def state(self) -> dict[str, torch.Tensor]:
        """As every strategy, put together from the shards."""
        rank = self.world.rank
        state = {}
        for name, parameter in self.model.named_parameters():
            state[f"model.{name}"] = _whole(parameter, rank)
            for slot, value in self.optimiser.state.get(parameter, {}).items():
                if value is not None:
                    state[f"optimiser.{name}.{slot}"] = _whole(value, rank)
        buffers = self.gather({name: kept(buffer) for name, buffer in self.model.named_buffers()})
        if rank > 0:
            return {}
        for number, own in enumerate(buffers):
            state |= {f"rank{number}.{name}" if number else f"model.{name}": buffer for name, buffer in own.items()}
        return state

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Each rank takes its shards."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(_like(parameter, state[f"model.{name}"]))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(state.get(f"rank{self.world.rank}.{name}", state[f"model.{name}"]))
        plain = self.optimiser.state_dict()
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        plain["state"] = {
            number: {slot: _like(parameter, value) for slot, value in slots_for(state, names[parameter]).items()}
            for number, parameter in enumerate(self.trainable)
        }
        self.optimiser.load_state_dict(plain)


def units(model: nn.Module, least_bytes: float) -> list[nn.Module]:
    """The modules with weights that are gathered at one time: innermost first, containers opened, none with too little."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            found += units(child, least_bytes)
        elif (size := sum(parameter.nbytes for parameter in child.parameters())) >= least_bytes and size > 0:
            found.append(child)
    return found


def _whole(value: torch.Tensor, rank: int) -> torch.Tensor:
    """The whole of a sharded tensor, on the CPU of rank 0; elsewhere nothing is kept. Called by all ranks."""
    whole = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)
    return kept(whole) if rank == 0 else torch.empty(0)


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`value` sharded as `parameter` is, where it has one value per weight. No rank sends anything."""
    assert isinstance(parameter, DTensor)
    if value.shape != parameter.shape:
        return value.clone()
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)
