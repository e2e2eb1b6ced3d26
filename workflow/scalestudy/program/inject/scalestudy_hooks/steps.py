"""Optimiser steps of one process of a script, the exchange of its ranks, and the record of its window."""

import atexit
import gc
import json
import os
import sys
import time

from .loading import Loading

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
PATIENCE_S = 60.0
"""Longest wait for the records of other ranks before a rank ends: they may still need its connections."""
FLUSH_S = 0.2
"""Age of lines of the trace before they are written."""


class Steps:
    """The steps of one process; nothing is timed before the first."""

    def __init__(self, request, torch):
        """Put the hooks into torch."""
        self.torch = torch
        self.request = request
        self.warmup = max(1, request["warmup"])
        self.last = None if request["steps"] is None else self.warmup + request["steps"]
        self.loading = Loading(torch, request)
        self.exchange_is_removed = "exchange" in request["remove"]
        self.ddp_modules = self.fsdp_modules = 0
        self.trace = None
        self.flushed_s = 0.0
        self.times = []
        self.optimiser = None
        self.watch_ddp()
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(self.after_step)

    def watch_ddp(self):
        """Count DistributedDataParallel modules, and take their synchronisation away."""
        ddp = self.torch.nn.parallel.DistributedDataParallel
        plain_init, plain_forward = ddp.__init__, ddp.forward
        steps = self

        def init(module, *args, **kwargs):
            steps.ddp_modules += 1
            plain_init(module, *args, **kwargs)

        def forward(module, *args, **kwargs):
            module.require_backward_grad_sync = False
            return plain_forward(module, *args, **kwargs)

        ddp.__init__ = init
        if self.exchange_is_removed:
            ddp.forward = forward

    def find_fsdp(self):
        """Count FSDP2 modules, once, and take their reduction of gradients away."""
        sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
        for module in [] if sharded is None else [found for found in gc.get_objects() if isinstance(found, sharded)]:
            self.fsdp_modules += 1
            if self.exchange_is_removed:
                module.set_requires_gradient_sync(False, recurse=False)

    def after_step(self, optimiser, _args, _kwargs):
        """Mark the end of an optimiser step; a further optimiser of the same script marks none."""
        if self.optimiser is None:
            self.optimiser = optimiser
            self.find_fsdp()
            atexit.register(self.write)
        if optimiser is not self.optimiser:
            return
        done = len(self.times) + 1
        if done in (self.warmup, self.last) and self.is_on_gpu():
            self.torch.cuda.synchronize()  # the window begins and ends with an idle device
        now = time.perf_counter()
        self.times.append(now)
        samples = self.loading.after_step(now)
        if done == self.warmup:
            self.loading.begin_window()
        if self.request.get("trace"):
            self.add_to_trace(now, samples)
        if done == self.last:
            self.write()
            if self.request["leave"]:
                self.leave()

    def add_to_trace(self, now, samples):
        """Add a line: end of the step, its samples, and the wait for data since the window began."""
        if self.trace is None:
            file = os.path.join(self.request["out"], f"steps.{self.place()[0]}.jsonl")
            self.trace = open(file, "w", buffering=1 << 16)  # noqa: SIM115
        self.trace.write(f'{{"clock": {now!r}, "samples": {samples}, "waited_s": {self.loading.waited_s!r}}}\n')
        if now - self.flushed_s > FLUSH_S:
            self.flushed_s = now
            self.trace.flush()

    def write(self):
        """Write this rank's record, at the end of its window or of the script."""
        atexit.unregister(self.write)
        if self.trace is not None:
            self.trace.flush()
        times = self.times[self.warmup - 1 :]
        rank, self.world = self.place()
        record = {
            "rank": rank,
            "world": self.world,
            "steps": max(0, len(times) - 1),
            "window_s": times[-1] - times[0] if times else 0.0,
            **self.loading.facts(),
            "ddp_modules": self.ddp_modules,
            "fsdp_modules": self.fsdp_modules,
            "is_distributed": self.is_distributed(),
            "torch": self.torch.__version__,
            "device_name": self.torch.cuda.get_device_name() if self.is_on_gpu() else "cpu",
            "is_compiled": self.is_compiled(),
            "on_gpu": self.is_on_gpu(),
            "parameters": self.checksum(),
        }
        file = os.path.join(self.request["out"], f"rank.{rank}.json")
        with open(file + ".part", "w") as part:
            json.dump(record, part)
        os.replace(file + ".part", file)

    def leave(self):
        """End this process without the script's own end, once all ranks of the script have their records."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if len([name for name in os.listdir(self.request["out"]) if name.endswith(".json")]) >= self.world:
                break
            time.sleep(0.02)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def place(self):
        """Return rank and world size, from the process group or the launcher's variables."""
        if self.is_distributed():
            return self.torch.distributed.get_rank(), self.torch.distributed.get_world_size()
        return int(first_variable(RANK_VARIABLES, "0")), int(first_variable(WORLD_VARIABLES, "1"))

    def is_distributed(self):
        """Tell whether the script has a process group of more than one rank."""
        dist = self.torch.distributed
        return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)

    def is_on_gpu(self):
        """Tell whether this process uses a GPU."""
        return self.torch.cuda.is_available() and self.torch.cuda.is_initialized()

    def is_compiled(self):
        """Tell whether torch.compile has compiled anything in this process."""
        utils = sys.modules.get("torch._dynamo.utils")
        return bool(utils is not None and utils.counters["stats"].get("unique_graphs", 0))

    def checksum(self):
        """Return a sum over one parameter: ranks that exchange have the same one."""
        parameter = self.optimiser.param_groups[0]["params"][0].detach()
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        return float(local.double().sum())


def first_variable(names, default):
    """Return the first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), default)
