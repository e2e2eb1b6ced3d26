"""The real submit line of each job, from the adapter that the executor uses. No scheduler is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalestudy.cluster.plan.planned import Plan, PlannedJob
from scalestudy.errors import UserError
from scalestudy.site_fault import site_file
from scalestudy.spec.config import read_site

UNIQUE = "UNIQUE"
"""Placeholder for the part of a job's name that differs with each submission."""
JOBS = Path(".scalestudy/jobs")


def scheduler_of_site() -> Any:
    """The adapter of the profile's site; None where it names no scheduler. UserError for wrong keys."""
    settings = read_site().scheduler
    if settings is None:
        return None
    from snakemake_executor_plugin_multinode.schedulers import scheduler_of

    try:
        return scheduler_of(settings)
    except ValueError as error:
        raise UserError(str(error), f"{site_file()}: scheduler", "the README.md of the profile has examples") from None


def submit_lines(plan: Plan) -> dict[str, list[str] | str]:
    """By the job's name, the words of its line, or why the job cannot be submitted.

    Empty where the profile names no scheduler.
    """
    scheduler = scheduler_of_site()
    return {} if scheduler is None else {job.name: _line(scheduler, job) for job in plan.submitted}


def _line(scheduler: Any, job: PlannedJob) -> list[str] | str:
    from snakemake_executor_plugin_multinode.records import job_name
    from snakemake_executor_plugin_multinode.resources import request_of

    name = job_name(job.seen.rule, job.seen.wildcards.values()).rpartition(".")[0] + f".{UNIQUE}"
    folder = Path.cwd() / JOBS / job.seen.rule
    try:
        request = request_of(
            job.resources.plain(), 1, name, folder / f"{name}.sh", folder / f"{name}.log", scheduler.kind
        )
        line: list[str] = scheduler.submit_command(request)
    except ValueError as error:
        return str(error)
    return line
