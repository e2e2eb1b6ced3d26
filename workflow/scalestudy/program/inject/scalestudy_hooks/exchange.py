"""Exchange of a script's ranks: counted, and taken away."""

import sys


class Exchange:
    """DistributedDataParallel and FSDP2 modules of one process."""

    def __init__(self, torch, is_removed):
        """Hook into DistributedDataParallel; `is_removed`: its modules do not synchronise."""
        self.torch = torch
        self.is_removed = is_removed
        self.ddp_modules = 0
        self.fsdp_modules = 0
        self.watch_ddp()

    def watch_ddp(self):
        """Count DistributedDataParallel modules, and take their synchronisation away."""
        ddp = self.torch.nn.parallel.DistributedDataParallel
        plain_init, plain_forward = ddp.__init__, ddp.forward
        exchange = self

        def init(module, *args, **kwargs):
            exchange.ddp_modules += 1
            plain_init(module, *args, **kwargs)

        def forward(module, *args, **kwargs):
            module.require_backward_grad_sync = False
            return plain_forward(module, *args, **kwargs)

        ddp.__init__ = init
        if self.is_removed:
            ddp.forward = forward

    def find_fsdp(self):
        """Count FSDP2 modules, once, and take their reduction of gradients away."""
        import gc

        fsdp = sys.modules.get("torch.distributed.fsdp")
        sharded = getattr(fsdp, "FSDPModule", None)
        if sharded is None:
            return
        for module in [found for found in gc.get_objects() if isinstance(found, sharded)]:
            self.fsdp_modules += 1
            if self.is_removed:
                module.set_requires_gradient_sync(False, recurse=False)

    def is_distributed(self):
        """Tell whether the script has a process group of more than one rank."""
        dist = self.torch.distributed
        return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)

    def facts(self):
        """Return the counts for the record."""
        return {
            "ddp_modules": self.ddp_modules,
            "fsdp_modules": self.fsdp_modules,
            "is_distributed": self.is_distributed(),
        }
