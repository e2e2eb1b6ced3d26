"""Batch systems behind one interface (scheduler.py); a file per system. Nothing here knows Snakemake or training.

`scheduler_of` makes a `Scheduler` from the `scheduler:` section of a site file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_multinode.clock import Clock
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer, NoAnswer, run_command
from snakemake_executor_plugin_multinode.schedulers.scheduler import (
    Cause,
    JobRef,
    LimitReached,
    Refused,
    Request,
    Run,
    Scheduler,
    State,
    Status,
)  # fmt: skip
from snakemake_executor_plugin_multinode.schedulers.settings import Settings, read_settings

__all__ = [
    "Cause", "CommandAnswer", "JobRef", "LimitReached", "NoAnswer", "Refused", "Request", "Scheduler", "Settings", "State", "Status",
    "detected_kind", "has_pbs", "scheduler_of",
]  # fmt: skip


def _kinds() -> dict[str, type[Scheduler]]:
    from snakemake_executor_plugin_multinode.schedulers.pbs import Pbs
    from snakemake_executor_plugin_multinode.schedulers.sge import Sge
    from snakemake_executor_plugin_multinode.schedulers.slurm import Slurm

    return {kind.kind: kind for kind in (Slurm, Sge, Pbs)}


def scheduler_of(settings: Mapping[str, Any], run: Run = run_command, clock: Clock | None = None) -> Scheduler:
    """The `scheduler:` section of a site file as a scheduler. ValueError, with a sentence, for wrong keys or values."""
    kinds = _kinds()
    read = read_settings(settings, tuple(kinds))
    scheduler = kinds[read.kind](read, run, clock)
    _try_template(scheduler)
    return scheduler


def _try_template(scheduler: Scheduler) -> None:
    """A wrong template is found before the first job, with a request that uses everything."""
    ranks = next((number for number in scheduler.settings.environments if number is not None), 4)
    probe = Request("probe", Path("/probe.sh"), Path("/probe.log"), 2, ranks, ranks, 8, 64_000, 60, "queue")
    scheduler.request_words(probe)


def detected_kind(which: Callable[[str], str | None] = shutil.which, run: Run = run_command) -> str | None:
    """The batch system of this host, by its own commands; three systems have a `qsub`, so Slurm is known by `sbatch`.

    Slurm's wrappers for PBS are no PBS (they drop all but the last `-l`): where `sbatch` is, Slurm is used, unless its
    controller does not answer and this host has the commands of another system, too.
    """
    slurm, qsub = which("sbatch") is not None, which("qsub") is not None
    if slurm and (not qsub or _answers(run)):
        return "slurm"
    if qsub and has_pbs(run):
        return "pbs"
    if qsub and which("qconf"):
        return "sge"
    return "slurm" if slurm else None


def _answers(run: Run) -> bool:
    """Whether a controller of Slurm does."""
    try:
        return run(["scontrol", "ping"], 25.0).code == 0
    except NoAnswer:
        return False


def has_pbs(run: Run = run_command) -> bool:
    """Whether the qsub of this host is that of PBS: the others do not know `--version`."""
    try:
        version = run(["qsub", "--version"], 25.0)
    except NoAnswer:
        return False
    return "pbs_version" in version.out + version.err
