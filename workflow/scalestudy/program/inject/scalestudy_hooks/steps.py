"""Optimiser steps of one process of a script, and the record of its windows."""

import atexit
import json
import os
import sys
import time

from .exchange import Exchange
from .loading import Loading

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
PATIENCE_S = 60.0
"""Longest wait for the records of other ranks before a rank ends: they may still need its connections."""
FLUSH_S = 0.2
"""Age of lines of the trace before they are written."""
SETTLING_STEPS = 3
"""Steps between two windows of a process: ranks that went apart meet again."""


class Steps:
    """The steps of one process, and its windows; nothing is timed before the first step."""

    def __init__(self, request, torch):
        """Put the hooks into torch."""
        self.torch = torch
        self.request = request
        self.loading = Loading(torch, request)
        self.to_come = list(request.get("exchange", [True]))
        self.exchange = Exchange(torch)
        if not all(self.to_come):
            self.exchange.watch_ddp()
        self.windows = []
        self.done = 0
        self.begin = max(1, request["warmup"])
        self.begin_s = self.end_s = None
        self.trace = None
        self.flushed_s = 0.0
        self.optimiser = None
        with open(os.path.join(request["out"], f"torch.{os.getpid()}"), "w") as file:
            file.write(torch.__version__)  # a script without an optimiser writes no record
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(self.after_step)

    def after_step(self, optimiser, _args, _kwargs):
        """Mark the end of an optimiser step; further optimisers of the same script extend it."""
        if self.optimiser is None:
            self.optimiser = optimiser
            atexit.register(self.write)
        if optimiser is not self.optimiser:
            self.loading.extend_step()
            return
        self.done += 1
        if self.done == 1:
            (self.rank, self.world), self.has_group = self.place(), self.is_distributed()  # a script may end its group
            self.exchange.switch(self.to_come[0])  # the first step is exchanged: until then there may be no group
        steps = self.request["steps"]
        is_last = steps is not None and self.done == self.begin + steps
        if (is_last or self.done == self.begin) and self.is_on_gpu():
            self.torch.cuda.synchronize()  # the window begins and ends with an idle device
        now = self.end_s = time.perf_counter()
        samples = self.loading.after_step(now)
        if self.done == self.begin:
            self.begin_s = now
            self.loading.begin_window(now, has_end=steps is not None and self.is_on_gpu())
        if self.request.get("trace"):
            self.add_to_trace(now, samples)
        if is_last:
            self.end_window()

    def end_window(self):
        """Keep the window; go on with the next one, where ranks exchange or not, or write the record after the last."""
        self.windows.append(self.window())
        if len(self.windows) < len(self.to_come):
            self.exchange.switch(self.to_come[len(self.windows)])
            self.begin, self.begin_s = self.done + SETTLING_STEPS, None
            return
        self.write()
        if self.request["leave"]:
            self.leave()

    def window(self):
        """Return the steps and times since the window began."""
        is_open = self.begin_s is not None
        return {
            "steps": self.done - self.begin if is_open else 0,
            "window_s": self.end_s - self.begin_s if is_open else 0.0,
            "between_s": self.loading.between(),
            "waited_s": self.loading.waited_s,
        }

    def add_to_trace(self, now, samples):
        """Add a line: end of the step, its samples, and the wait for data since the window began."""
        if self.trace is None:
            file = os.path.join(self.request["out"], f"steps.{self.rank}.jsonl")
            self.trace = open(file, "a", buffering=1 << 16)  # noqa: SIM115 (open to the script's end)
            self.trace.write('{"begins": true}\n')  # after what an earlier process of the command wrote
        self.trace.write(f'{{"clock": {now!r}, "samples": {samples}, "waited_s": {self.loading.waited_s!r}}}\n')
        if now - self.flushed_s > FLUSH_S:
            self.flushed_s = now
            self.trace.flush()

    def write(self):
        """Write this rank's record, at the end of its last window or of the script."""
        atexit.unregister(self.write)
        if self.trace is not None:
            self.trace.flush()
        while len(self.windows) < len(self.to_come):  # the script has ended within one
            self.windows.append(self.window())
            self.begin_s = None
        record = {
            "rank": self.rank,
            "world": self.world,
            "windows": self.windows,
            "loaders": self.loading.loader_facts(),
            "is_distributed": self.has_group,
            "device_name": self.torch.cuda.get_device_name() if self.is_on_gpu() else "cpu",
            "is_compiled": self.is_compiled(),
            "on_gpu": self.is_on_gpu(),
            "parameters": self.checksum(),
        }
        file = os.path.join(self.request["out"], f"rank.{self.rank}.json")
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
        """Return a sum over one parameter that is trained: ranks that exchange have the same one."""
        parameters = [one for group in self.optimiser.param_groups for one in group["params"]]
        parameter = next((one for one in parameters if one.requires_grad), parameters[0]).detach()
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        return float(local.sum(dtype=self.torch.float64))


def first_variable(names, default):
    """Return the first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), default)
