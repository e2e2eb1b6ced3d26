"""Batch systems behind one interface (scheduler.py); a file per system. Nothing here knows Snakemake or training.

`chosen_scheduler` makes the `Scheduler` of a site.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
)
from snakemake_executor_plugin_multinode.site import ANY, SchedulerSettings, Site

__all__ = [
    "Cause", "CommandAnswer", "JobRef", "LimitReached", "NoAnswer", "Refused", "Request", "Scheduler",
    "SchedulerSettings", "State", "Status", "chosen_scheduler", "detected_kind", "scheduler_of",
]  # fmt: skip


def scheduler_of(
    given: SchedulerSettings | Mapping[str, Any], run: Run = run_command, now_s: Callable[[], float] = time.monotonic
) -> Scheduler:
    """Make the scheduler of a site, from its settings or plain data. ValueError for wrong values and templates."""
    from snakemake_executor_plugin_multinode.schedulers.pbs import Pbs
    from snakemake_executor_plugin_multinode.schedulers.sge import Sge
    from snakemake_executor_plugin_multinode.schedulers.slurm import Slurm

    settings = SchedulerSettings.model_validate(given)
    kinds: dict[str | None, type[Scheduler]] = {"slurm": Slurm, "sge": Sge, "pbs": Pbs}
    if settings.kind is None:
        raise ValueError("`scheduler.kind` must be one of slurm, sge, pbs; it is missing")
    scheduler = kinds[settings.kind](settings, run, now_s)
    # Filled once with a request that uses everything: a wrong template is found before the first job.
    ranks = next((int(number) for number in settings.environments if number != ANY), 4)
    probe = Request("probe", Path("/probe.sh"), Path("/probe.log"), 2, ranks, ranks, 8, 64_000, 60, "queue")
    scheduler.request_words(probe)
    return scheduler


def chosen_scheduler(site: Site) -> Scheduler:
    """Return the scheduler that the site names, or that of this host. ValueError if there is none."""
    settings = site.scheduler or SchedulerSettings()
    if settings.kind is None:
        kind = detected_kind()
        if kind is None:
            raise ValueError("no batch system found: neither sbatch nor qsub is in PATH. On a login node they are")
        settings = settings.model_copy(update={"kind": kind})
    elif settings.kind == "pbs" and shutil.which("sbatch") and not _has_pbs(run_command):
        why = "drops all but the last `-l`; set `kind: slurm`, and its `request` and `options`"
        raise ValueError(f"`scheduler.kind` is pbs, but the qsub of this host is Slurm's, which {why}")
    scheduler = scheduler_of(settings)
    if missing := [command for command in scheduler.commands if shutil.which(command) is None]:
        raise ValueError(f"the commands of {settings.kind} are not in PATH: {', '.join(missing)}")
    return scheduler


def detected_kind(which: Callable[[str], str | None] = shutil.which, run: Run = run_command) -> str | None:
    """The batch system of this host, by its own commands; three systems have a `qsub`, so Slurm is known by `sbatch`.

    Slurm's wrappers for PBS are no PBS (they drop all but the last `-l`): where `sbatch` is, Slurm is used, unless its
    controller does not answer and this host has the commands of another system, too.
    """
    slurm, qsub = which("sbatch") is not None, which("qsub") is not None
    if slurm and (not qsub or _answers(run)):
        return "slurm"
    if qsub and _has_pbs(run):
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


def _has_pbs(run: Run) -> bool:
    """Whether the qsub of this host is that of PBS: the others do not know `--version`."""
    try:
        version = run(["qsub", "--version"], 25.0)
    except NoAnswer:
        return False
    return "pbs_version" in version.out + version.err
