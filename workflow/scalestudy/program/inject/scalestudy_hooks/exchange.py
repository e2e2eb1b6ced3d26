"""The exchange between a script's ranks, switched off and on again while it trains."""


class Exchange:
    """All collectives of one process.

    While they are off, each group of torch.distributed has a backend that leaves every rank its own values at once, and
    DistributedDataParallel, whose reducer does not take that backend, makes its passes as under `no_sync`.
    """

    def __init__(self, torch):
        """Begin with ranks that exchange."""
        self.torch = torch
        self.is_on = True
        self.real = {}

    def watch_ddp(self):
        """Take the synchronisation of DistributedDataParallel away while exchange is off."""
        exchange, ddp = self, self.torch.nn.parallel.DistributedDataParallel
        plain_forward = ddp.forward

        def forward(module, *args, **kwargs):
            if exchange.is_on:
                return plain_forward(module, *args, **kwargs)
            own = module.require_backward_grad_sync
            module.require_backward_grad_sync = False
            try:
                return plain_forward(module, *args, **kwargs)
            finally:
                module.require_backward_grad_sync = own

        ddp.forward = forward

    def switch(self, on):
        """Let ranks exchange, or not, from now on; all ranks do it after the same step."""
        if on == self.is_on:
            return
        self.is_on = on
        dist = self.torch.distributed
        if on:
            for (group, device), backend in self.real.items():
                replace_backend(group, device, backend)
            self.real.clear()
        elif dist.is_available() and dist.is_initialized():
            for group in list(dist.distributed_c10d._world.pg_map):
                silent = silent_backend(self.torch, group)
                for device in group._device_types:
                    self.real[group, device] = group._get_backend(device)
                    replace_backend(group, device, silent)


def silent_backend(torch, group):
    """Return a backend for a group whose collectives end at once; torch has it for tests of its own."""
    fake = torch._C._distributed_c10d.FakeProcessGroup
    return getattr(fake, "_create_internal", fake)(group.rank(), group.size())


def replace_backend(group, device, backend):
    """Give a group another backend for a kind of device. Raises RuntimeError where torch keeps the one before."""
    kinds, name = type(group).BackendType, group.group_name
    group._register_backend(device, getattr(kinds, backend.name().upper(), kinds.CUSTOM), backend)
    if hasattr(group, "_set_group_name"):
        group._set_group_name(name)  # it has taken that of the backend, which functional collectives do not find
    if group._get_backend(device) is not backend:
        raise RuntimeError(f"scalestudy explain: the backend of {device} could not be replaced")
