"""Horovod: tensors that are ready on all ranks are fused and summed, cycle by cycle, during backward (Sergeev, 2018)."""

from __future__ import annotations

import os
import socket
from contextlib import nullcontext
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.strategies.base import MakeOptimiser, Strategy, World
from scalestudy.strategies.catalogue import Horovod as Options
from scalestudy.strategies.nodes import count


class Horovod(Strategy):
    """Its DistributedOptimizer as its documentation has it. `exchange` is the part that backward did not hide."""

    options: Options
    overlapped = True
    can_hold_back = False

    def __init__(self, options: Options, world: World) -> None:
        super().__init__(options, world)
        import horovod.torch

        self.rendezvous: Any = None
        self.hvd: Any = horovod.torch
        # Horovod starts once in a process: started again after its end it crashes.
        if not self.hvd.is_initialized():
            # Horovod reads its options from the environment when it starts. GPUs use NCCL where the build has it.
            os.environ["HOROVOD_CONTROLLER"] = os.environ["HOROVOD_CPU_OPERATIONS"] = "gloo"
            self._meet()
            self.hvd.init()
        assert (self.hvd.rank(), self.hvd.size()) == (world.rank, world.ranks)

    def prepare(self, model: nn.Module, make_optimiser: MakeOptimiser) -> nn.Module:
        """As every strategy, with Horovod's optimiser around ours."""
        module = super().prepare(model, make_optimiser)
        self.optimiser = self.hvd.DistributedOptimizer(
            self.optimiser,
            named_parameters=[(name, p) for name, p in model.named_parameters() if p.requires_grad],
            backward_passes_per_step=self.accumulation_steps,
        )
        # Horovod's own takes no `set_to_none`.
        self.optimiser.zero_grad = partial(torch.optim.Optimizer.zero_grad, self.optimiser)  # type: ignore[method-assign]
        return module

    def exchange(self) -> None:
        """Wait for pending exchanges."""
        if self.world.ranks > 1:
            self.optimiser.synchronize()  # type: ignore[attr-defined]

    def update(self) -> None:
        """Apply the gradients."""
        self.gradients()
        # Of one rank Horovod synchronises nothing.
        with self.optimiser.skip_synchronize() if self.world.ranks > 1 else nullcontext():  # type: ignore[attr-defined]
            self.optimiser.step()

    def finish(self) -> None:
        """End Horovod's thread."""
        self.hvd.shutdown()
        if self.rendezvous is not None:
            self.rendezvous.stop()

    def _meet(self) -> None:
        """Agree over torch's process group on the address at which Horovod's ranks find each other."""
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
        from horovod.runner.http.http_server import RendezvousServer

        world, interface = self.world, os.environ.get("GLOO_SOCKET_IFNAME")
        hosts: list[Any] = [None] * world.ranks
        dist.all_gather_object(hosts, socket.gethostname(), group=world.workers)
        if interface is None and len(set(hosts)) == 1 and "lo" in psutil.net_if_addrs():
            interface = "lo"
        nodes = [HostInfo(f"node{number}", world.ranks_per_node) for number in range(count(world))]
        slots = get_host_assignments(nodes, world.ranks, world.ranks)
        place: list[Any] = [None]
        if world.rank == 0:
            here = socket.gethostbyname(socket.gethostname())
            if interface is not None:
                addresses = psutil.net_if_addrs()[interface.split(",")[0]]
                here = next(address.address for address in addresses if address.family == socket.AF_INET)
            self.rendezvous = RendezvousServer()
            place = [(here, self.rendezvous.start())]
            self.rendezvous.init(slots)
        dist.broadcast_object_list(place, 0, group=world.workers)
        address, port = place[0]
        variables = {"GLOO_RENDEZVOUS_ADDR": address, "GLOO_RENDEZVOUS_PORT": port, **vars(slots[world.rank])}
        os.environ.update({f"HOROVOD_{name.upper()}": str(value) for name, value in variables.items()})
        if interface is not None:
            os.environ["HOROVOD_GLOO_IFACE"] = interface
