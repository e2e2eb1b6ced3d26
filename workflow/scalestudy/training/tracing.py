"""Traces of a few steps after the window, by torch.profiler, with what sets the clocks of their ranks right.

The steps are steps of the training, on its next batches, at a learning rate of 0: weights stay, and no other column
counts them. A profiled step is longer than one of the window.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from scalestudy.files import write_json
from scalestudy.measure.timers import PHASES, STEP
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World
from scalestudy.training.job import Job
from scalestudy.training.world import barrier

SETTLING = 4
"""Least steps under the profiler before the traced ones: its start holds up ranks, and lets batches pile up."""
ROUND_TRIPS = 50
"""Between rank 0 and each other rank; the shortest one tells how far apart their clocks are."""
CLOCK = "clock"
"""The span in which the host's clock was read."""


class Spans:
    """Takes the marks of a StepTimer, and opens a span of the profiler for each phase."""

    def __init__(self) -> None:
        self._open: record_function | None = None

    def begin(self) -> None:
        """A step begins: the wait for its batch."""
        self._enter(PHASES[0])

    def mark(self, phase: str) -> None:
        """A phase has ended: the next one begins."""
        self.end()
        self._enter(PHASES[PHASES.index(phase) + 1])

    def end(self) -> None:
        """The step's last phase has ended."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def _enter(self, phase: str) -> None:
        self._open = record_function(phase)
        self._open.__enter__()


def settling_steps(spec: RunSpec) -> int:
    """Steps before the traced ones, until batches that were made meanwhile are used up."""
    return max(SETTLING, 2 * spec.loader.workers * spec.loader.prefetch)


def trace(job: Job, world: World, step: Callable[[int], object]) -> None:
    """Make the steps from 0 on by `step`, and write `trace.<rank>.json` and `clock.<rank>.json` where this rank is traced.

    Called by all ranks that train.
    """
    measure, first = job.spec.measure, settling_steps(job.spec)
    traced = None
    if measure.trace_ranks is None or world.rank in measure.trace_ranks:
        on_gpu = [ProfilerActivity.CUDA] if world.device.type == "cuda" else []
        # Workers of the loader, and an exchange beside the backward pass, have threads of their own.
        everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        traced = profile(activities=[ProfilerActivity.CPU, *on_gpu], experimental_config=everywhere)
    with traced or nullcontext():
        barrier(world)
        for number in range(first + measure.trace_steps):
            with record_function(f"{STEP} {number - first}"):
                step(number)
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        with record_function(CLOCK):
            read_s = time.perf_counter()
    ahead_s = clock_of_rank_0(world)
    if traced is not None:
        traced.export_chrome_trace(str(job.folder / f"trace.{world.rank}.json"))
        clock = {"read_s": read_s, "ahead_s": ahead_s}
        write_json(job.folder / f"clock.{world.rank}.json", clock)


def clock_of_rank_0(world: World) -> float:
    """Seconds by which rank 0's `perf_counter` is ahead of this rank's.

    By the shortest of ROUND_TRIPS, as NTP does (RFC 5905, section 8): the other clock was read in its middle, or off that
    by half its length at most.
    """
    group = world.control or world.workers
    if group is None or world.ranks == 1:
        return 0.0
    clock, best = torch.zeros(1, dtype=torch.float64), (float("inf"), 0.0)
    for other in range(1, world.ranks):
        send, receive = (partial(call, group=group) for call in (dist.send, dist.recv))
        for _ in range(ROUND_TRIPS if world.rank in (0, other) else 0):
            if world.rank == 0:
                receive(clock, other)
                clock.fill_(time.perf_counter())
                send(clock, other)
                continue
            begin = time.perf_counter()
            send(clock, 0)
            receive(clock, 0)
            end = time.perf_counter()
            best = min(best, (end - begin, float(clock) - (begin + end) / 2))
    return 0.0 if world.rank == 0 else best[1]
