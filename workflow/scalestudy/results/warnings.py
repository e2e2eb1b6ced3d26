"""Warnings about valid numbers: pauses, faults, unsteady windows, and the placement of processes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from scalestudy.measure.window import change_of_halves
from scalestudy.results.records import Measured
from scalestudy.results.transports import Transports, nccl_warnings
from scalestudy.training.job import Job
from scalestudy.training.report import Report


def warnings(job: Job, reports: Sequence[Report], used: Transports) -> Iterator[str]:
    """All warnings of a finished run about its ranks, which `used` these transports."""
    yield from dict.fromkeys(warning for report in reports for warning in report.warnings)
    yield from learning_warnings(job, reports[0])
    yield from fault_warnings(reports)
    if job.resolved.step_time_s is None:
        yield from placement_warnings(reports, job.resolved.threads_per_rank, job.spec.launch.binding)
    yield from nccl_warnings(job, used, has_infiniband=any(Path("/sys/class/infiniband").glob("*")))


def learning_warnings(job: Job, report: Report) -> Iterator[str]:
    """Whether a full training has learned anything."""
    last = report.evaluations[-1] if report.evaluations and job.spec.runs_full_training else None
    score = None if last is None else last.accuracy if last.auroc is None else last.auroc
    if last is not None and score is not None and last.chance is not None and score <= last.chance:
        yield (
            f"nothing was learned: the score {score:.3g} after {last.epoch:g} epochs is no better than chance, "
            f"{last.chance:.3g}; lower optimiser.learning_rate, or raise train.epochs"
        )


# What happened in the window

MAX_STILL_S = 5.0
"""Between two samples a second apart, and of a part of a step that takes far less otherwise."""
MANY_STEPS = 20


def pause_warnings(measured: Measured, samples: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Gaps in the clock: a machine that slept, processes that were stopped for a while."""
    clocks: dict[float, list[float]] = {}
    for row in samples:
        clocks.setdefault(row["node"], []).append(row["clock_s"])
    gaps = (later - sooner for of_node in clocks.values() for sooner, later in itertools.pairwise(sorted(of_node)))
    still_s = max(gaps, default=0.0)
    parts = np.diff(measured.marks, axis=2)
    step_s = float(np.median(parts.sum(axis=2)))
    longest_s = float(parts.max())
    if still_s > MAX_STILL_S:
        yield (
            f"the run stood still for {still_s:.0f} s, as a machine that sleeps or processes that are stopped do: the times of "
            "its training, evaluation and set-up may hold that pause"
        )
    elif longest_s > max(MAX_STILL_S, MANY_STEPS * step_s):
        rank, step, _ = np.unravel_index(int(parts.argmax()), parts.shape)
        yield f"rank {rank} stood still for {longest_s:.0f} s in step {step}; the median step takes {step_s:.2g} s"


MIN_FAULT_S = 1e-6
"""What a page fault takes at least; about 2 µs in docs/measured/allocator.txt."""
MAX_FAULT_SHARE = 0.1
"""Share of the CPU time that page faults may take."""


def fault_warnings(reports: Sequence[Report]) -> Iterator[str]:
    """Whether the ranks spent the window's CPU time on page faults."""
    used = [report.window_usage for report in reports if report.window_usage is not None]
    cpu_s = sum(usage.user_s + usage.system_s for usage in used)
    faults = sum(usage.minor_faults for usage in used)
    if cpu_s > 0 and faults * MIN_FAULT_S > MAX_FAULT_SHARE * cpu_s:
        yield (
            f"page faults ({faults:,.0f} in the window) took at least {faults * MIN_FAULT_S / cpu_s:.0%} of the ranks' CPU "
            "time: unset MALLOC_* and GLIBC_TUNABLES, or see why memory is asked for anew in each step (with `memory_limit_mib` freed memory is returned on purpose)"
        )


def window_warnings(measured: Measured) -> Iterator[str]:
    """Whether the window was steady."""
    if (change := change_of_halves(measured.step_intervals)) is not None:
        by, half_width = change
        how = "slower" if by > 0 else "faster"
        yield (
            f"the second half of the window was {abs(by):.1%} {how} than the first (± {half_width:.1%}): the run was not "
            "steady; raise measure.warmup_steps, or look for what changed"
        )


# Where processes ran


def placement_warnings(reports: Sequence[Report], threads: int, binding: str) -> Iterator[str]:
    """Warn about the placement of processes, one sentence each.

    The rules are those of Vasudev and Lockman (Dell HPC AI Innovation Lab, 2019).
    """
    of_host: dict[str, list[Report]] = {}
    for report in reports:
        of_host.setdefault(report.placement["host"], []).append(report)
    for host, ranks in of_host.items():
        cores = [set(rank.placement["cores"]) for rank in ranks]
        union = set().union(*cores)
        if len(ranks) * threads > len(union):
            processes = f"{len(ranks)} ranks of {threads} {'thread' if threads == 1 else 'threads'}"
            yield f"{processes} share {len(union)} {'core' if len(union) == 1 else 'cores'} on {host}"
        elif binding == "core" and sum(map(len, cores)) > len(union):
            yield f"ranks share cores on {host}, though launch.binding gives each its own"
        yield from _devices(host, ranks)


def _devices(host: str, ranks: Sequence[Report]) -> Iterator[str]:
    devices = Counter(rank.placement["device"] for rank in ranks if rank.placement["device"])
    for device, count in devices.items():
        if count > 1:
            yield f"{count} ranks share the device {device} on {host}; one process per device is what gives its speed"
    for rank in ranks:
        near = set(rank.placement["device_cpus"])
        if near and not set(rank.affinity) <= near:
            where = "outside" if not set(rank.affinity) & near else "partly outside"
            yield f"rank {rank.rank} runs {where} the socket of its device on {host}: set launch.binding to `socket`"
