"""Batch systems behind one interface (scheduler.py); a file per system. Nothing here knows Snakemake or training.

`chosen_scheduler` makes the `Scheduler` of a site.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
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
    "SchedulerSettings", "State", "Status", "chosen_scheduler", "scheduler_of",
]  # fmt: skip


def scheduler_of(given: SchedulerSettings | Mapping[str, Any], run: Run = run_command) -> Scheduler:
    """Make the scheduler of a site, from its settings or plain data. ValueError for wrong values and templates."""
    from snakemake_executor_plugin_multinode.schedulers.pbs import Pbs
    from snakemake_executor_plugin_multinode.schedulers.sge import Sge
    from snakemake_executor_plugin_multinode.schedulers.slurm import Slurm

    settings = SchedulerSettings.model_validate(given)
    kinds: dict[str, type[Scheduler]] = {"slurm": Slurm, "sge": Sge, "pbs": Pbs}
    scheduler = kinds[settings.kind](settings, run)
    # Filled once with a request that uses everything: a wrong template is found before the first job.
    ranks = next((int(number) for number in settings.environments if number != ANY), 4)
    probe = Request(
        "probe", Path("/probe.sh"), Path("/probe.log"), 2, ranks, ranks, 8, 64_000, 60, "queue", account="account",
        qos="qos", constraint="constraint", gpu_model="model",
    )  # fmt: skip
    scheduler.request_words(probe)
    return scheduler


def chosen_scheduler(site: Site) -> Scheduler:
    """Return the scheduler that the site names. ValueError where this host does not have its commands."""
    settings = site.scheduler
    if settings is None:
        raise ValueError("no batch system is named: give a site file with `scheduler: {kind: slurm}`, or sge, or pbs")
    scheduler = scheduler_of(settings)
    if missing := [command for command in scheduler.commands if shutil.which(command) is None]:
        raise ValueError(
            f"the commands of {settings.kind} are not in PATH: {', '.join(missing)}. On a login node they are"
        )
    return scheduler
