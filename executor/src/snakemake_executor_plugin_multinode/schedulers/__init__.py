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
    scheduler.request_words(Request("probe", Path("/probe.sh"), Path("/probe.log"), 2, 4, 4, 8, 64_000, 60, "queue"))


def detected_kind(which: Callable[[str], str | None] = shutil.which, run: Run = run_command) -> str | None:
    """The batch system of this host, by its own commands; three systems have a `qsub`, so Slurm is known by `sbatch`.

    Slurm's wrappers for PBS are no PBS (they drop all but the last `-l`): where `sbatch` is, Slurm is used.
    """
    if which("sbatch"):
        return "slurm"
    if which("qsub") is None:
        return None
    if has_pbs(run):
        return "pbs"
    return "sge" if which("qconf") else None


def has_pbs(run: Run = run_command) -> bool:
    """Whether the qsub of this host is that of PBS: the others do not know `--version`."""
    try:
        version = run(["qsub", "--version"], 25.0)
    except NoAnswer:
        return False
    return "pbs_version" in version.out + version.err
