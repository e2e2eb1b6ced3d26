"""A run on this machine alone: its processes are forked from this one, which has imported their modules."""

from __future__ import annotations

import time
from dataclasses import replace

from scalestudy.hardware import bus_ids
from scalestudy.launch.failures import SETTLE_S, raise_cause
from scalestudy.launch.preload import preload
from scalestudy.launch.ranks import Ranks
from scalestudy.measure.system import UNMEASURED, Sampler
from scalestudy.training import rendezvous
from scalestudy.training.job import Job


def run_here(job: Job, group: int) -> list[dict[str, float]]:
    """Run all processes to their end, in the process group `group`; returns samples of their use.

    Raises RankFailed, UserError or Skipped, with every process ended.
    """
    if job.spec.program is None:
        preload()
    else:
        job = replace(job, store=("127.0.0.1", rendezvous.free_port()))
    ranks = Ranks(job, range(job.processes), group)
    try:
        ranks.start()
        sampler = Sampler(ranks.pids, group, devices_of(job, 0), job.spec.program is not None)
        sampler.start()
        try:
            _watch(ranks)
        finally:
            sampler.stop()
        if sampler.said:
            (job.folder / f"{UNMEASURED}0").write_text(sampler.said, encoding="utf-8")
    finally:
        ranks.end()
    if ranks.failures:
        raise_cause(ranks.failures, job)
    return [{"node": 0, **row} for row in sampler.rows]


def devices_of(job: Job, host: int) -> list[str | None]:
    """PCI addresses of the accelerators that a run uses on one of its machines; None where one is not known."""
    if job.resolved.device != "cuda":
        return []
    ranks = sum(rank < job.spec.ranks for rank in job.on_host(host))
    return bus_ids(min(ranks, job.resolved.devices) if job.shares_devices else ranks)


def _watch(ranks: Ranks) -> None:
    """Return when all have ended; after a failure, when those that fail in its wake have had time to."""
    while ranks.running and not ranks.failures:
        ranks.watch()
    deadline = time.monotonic() + SETTLE_S
    while ranks.running and time.monotonic() < deadline:
        ranks.watch(timeout_s=SETTLE_S / 5)
