"""Optimiser steps of one process of a script, and the record of its window."""

import atexit
import json
import os
import sys
import time

from .exchange import Exchange
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
        self.out = request["out"]
        self.warmup = max(1, request["warmup"])
        self.last = None if request["steps"] is None else self.warmup + request["steps"]
        self.leaves = request["leave"]
        self.loading = Loading(torch, request)
        self.exchange = Exchange(torch, "exchange" in request["remove"])
        self.trace = Trace(self.out) if request.get("trace") else None
        self.times = []
        self.optimiser = None
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(self.after_step)

    def after_step(self, optimiser, _args, _kwargs):
        """Mark the end of an optimiser step; a further optimiser of the same script marks none."""
        if self.optimiser is None:
            self.optimiser = optimiser
            self.exchange.find_fsdp()
            atexit.register(self.write, True)
        if optimiser is not self.optimiser:
            return
        done = len(self.times) + 1
        if done in (self.warmup, self.last):
            self.wait_for_device()
        now = time.perf_counter()
        self.times.append(now)
        samples = self.loading.after_step(now)
        if done == self.warmup:
            self.loading.begin_window()
        if self.trace is not None:
            self.trace.add(self.place()[0], now, samples, self.loading.waited_s)
        if done == self.last:
            self.write(False)
            if self.leaves:
                self.leave()

    def wait_for_device(self):
        """Let the window begin and end with an idle device."""
        if self.torch.cuda.is_available() and self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()

    def write(self, has_ended):
        """Write this rank's record; `has_ended` where the script came to its own end first."""
        atexit.unregister(self.write)
        if self.trace is not None:
            self.trace.flush()
        times = self.times[self.warmup - 1 :]
        rank, world = self.place()
        record = {
            "rank": rank,
            "world": world,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "has_ended": has_ended,
            "steps": max(0, len(times) - 1),
            "window_s": times[-1] - times[0] if times else 0.0,
            "begin": self.times[0],
            **self.loading.facts(),
            **self.exchange.facts(),
            "torch": self.torch.__version__,
            "is_compiled": self.is_compiled(),
            "on_gpu": self.torch.cuda.is_available() and self.torch.cuda.is_initialized(),
            "parameters": self.checksum(),
        }
        file = os.path.join(self.out, f"rank.{rank}.json")
        with open(file + ".part", "w") as part:
            json.dump(record, part)
        os.replace(file + ".part", file)
        self.world = world

    def leave(self):
        """End this process without the script's own end, once all ranks of the script have their records."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if len([name for name in os.listdir(self.out) if name.endswith(".json")]) >= self.world:
                break
            time.sleep(0.02)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def place(self):
        """Return rank and world size, from the process group or the launcher's variables."""
        if self.exchange.is_distributed():
            return self.torch.distributed.get_rank(), self.torch.distributed.get_world_size()
        return int(first_variable(RANK_VARIABLES, "0")), int(first_variable(WORLD_VARIABLES, "1"))

    def is_compiled(self):
        """Tell whether torch.compile has compiled anything in this process."""
        utils = sys.modules.get("torch._dynamo.utils")
        return bool(utils is not None and utils.counters["stats"].get("unique_graphs", 0))

    def checksum(self):
        """Return a sum over one parameter: ranks that exchange have the same one."""
        parameter = self.optimiser.param_groups[0]["params"][0].detach()
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        return float(local.double().sum())


class Trace:
    """A line per step, written a few times a second."""

    def __init__(self, out):
        """Remember the folder; the file is opened once the rank is known."""
        self.out = out
        self.file = None
        self.written_s = 0.0

    def add(self, rank, now, samples, waited_s):
        """Add a step: when it ended, its samples, and the wait for data since the window began."""
        if self.file is None:
            self.file = open(os.path.join(self.out, f"steps.{rank}.jsonl"), "w", buffering=1 << 16)  # noqa: SIM115
        self.file.write(f'{{"clock": {now!r}, "samples": {samples}, "waited_s": {waited_s!r}}}\n')
        if now - self.written_s > FLUSH_S:
            self.written_s = now
            self.flush()

    def flush(self):
        """Write what is buffered."""
        if self.file is not None:
            self.file.flush()


def first_variable(names, default):
    """Return the first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), default)
