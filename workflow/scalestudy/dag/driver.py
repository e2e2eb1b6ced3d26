"""What the Snakefile does in the process that reads it: read the project, and look after the driver."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from scalestudy import driver
from scalestudy.cluster.resources import refuse_caps
from scalestudy.dag.project import Project
from scalestudy.dag.rules import PACKAGE, end
from scalestudy.errors import UserError
from scalestudy.files import read_json
from scalestudy.results import finished
from scalestudy.spec import fixed_claims
from scalestudy.spec.beyond import left_out_of
from scalestudy.spec.config import read_machine
from scalestudy.spec.read_study import find_studies
from snakemake_executor_plugin_multinode.ratelimit import drop_job_rate_limit

PLAN = "scalestudy_plan"
"""Key of Snakemake's configuration by which `scalestudy plan` names a file for the Snakefile of its dry run: JSON with
its `changes` and the `caps` of the profile."""

MARKS = Path(".snakemake/incomplete")
"""Snakemake's marks of jobs that were begun: a file each, named by the output in base 64, cut into parts that begin with @."""

SOURCE = PACKAGE.parents[1]
"""The clone that this package lies in, if it lies in one; envs/conda.post-deploy.sh installs it."""


def read_project(config: Mapping[str, Any], workflow: Any) -> Project:
    """The project as a Snakefile reads it; an error that a user can remedy ends the command with a message.

    The display of profiles/default gets the project, for the plan under a dry run.
    """
    config = dict(config)
    keep_finished_runs()
    try:
        plan = read_json(Path(config.pop(PLAN))) if PLAN in config else {}
        caps = plan["caps"] if "caps" in plan else plain_caps(workflow.global_resources)
        refuse_caps(caps)
        project = Project(config, caps, plan.get("changes"))
    except (UserError, OSError) as error:
        end(error)
    os.environ.update(project.environment())
    if (SOURCE / "pyproject.toml").is_file():
        os.environ["SCALESTUDY_SOURCE"] = str(SOURCE)
    for display in workflow.logger_manager.plugin_handlers:
        if hasattr(display, "reads"):
            display.reads(project, workflow)
    return project


def keep_finished_runs() -> None:
    """Take Snakemake's mark of a job that was begun off each result that is there: a result is whole or absent.

    A run can end after its driver was killed. Nobody takes the mark off then, and the next driver would make it again.
    """
    for mark in [path for path in MARKS.rglob("*") if path.is_file()]:
        name = "".join(part.removeprefix("@") for part in mark.relative_to(MARKS).parts)
        with suppress(ValueError, OSError):
            output = Path(urlsafe_b64decode(name).decode())
            if output.match("results/*/runs/*/result.json") and output.exists():
                mark.unlink()


def plain_caps(caps: Mapping[str, Any]) -> dict[str, Any]:
    """Snakemake's caps by name, as numbers and words."""
    return {name: getattr(cap, "value", cap) for name, cap in caps.items()}


def fix_claims(workflow: Any, project: Project) -> None:
    """Where runs are about to be made: write what the claims are that they will judge.

    Studies share runs, so it is done for every study of this scale, configured or not.
    """
    if any(job.rule.name == "train" for job in workflow.dag.needrun_jobs()):
        name, scale = project.config.machine, project.config.scale
        found = find_studies(None, scale, read_machine(name), machine_name=name)
        fixed_claims.fix_claims(found.studies, name)


def say_left_out(workflow: Any, project: Project) -> None:
    """What the studies among the targets name and the machine does not have. Under a dry run the plan says it."""
    for said in left_out_of(project.requested(workflow.dag_settings.targets)):
        sys.stderr.write(f"scalestudy: left out: {said}\n")


def calm_driver(workflow: Any) -> None:
    """Keep a local driver from taking the time of the runs that it starts: one job at a time needs no rate limit."""
    if workflow.local_exec:
        drop_job_rate_limit(workflow.scheduler)


def forget_planned_params(workflow: Any) -> None:
    """Let Snakemake record the params that a job was run with, not those of when it was planned.

    It works params out again once a job's inputs are there, but records the ones that it kept from planning: of a summary
    whose results were still to be made, so that it would be made twice.
    """
    workflow.persistence._params.cache_clear()


def stop_runs_on_sigterm(workflow: Any) -> None:
    """SIGTERM to a local driver asks the run that it waits for to stop with a checkpoint; Snakemake alone would wait for
    the run's end. One that submits jobs leaves them running.
    """
    if not workflow.local_exec or threading.current_thread() is not threading.main_thread():
        return
    of_snakemake = signal.getsignal(signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        for process in _running_trainers():
            sys.stderr.write(
                f"scalestudy: process {process} stops with a checkpoint; the same command resumes its run\n"
            )
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        if callable(of_snakemake):
            of_snakemake(number, frame)

    signal.signal(signal.SIGTERM, stop)


def _running_trainers() -> list[int]:
    """The `scalestudy train` processes that this driver has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            command = pairwise(process.cmdline())
            if any(Path(program).name == "scalestudy" and verb == "train" for program, verb in command):
                found.append(process.pid)
    return found


def own_folder(workflow: Any, begin: float) -> None:
    """Take the lock of the working directory for a driver of this machine; one that submits jobs has it by its executor.

    Neither has Snakemake's own lock (`nolock` in profiles/default), which outlives a driver that was killed. `begin` is
    when the driver began to read the folder, in seconds since 1970.
    """
    driver.conceal()
    if workflow.local_exec:
        _take_lock()
        _refuse_if_overtaken(workflow, begin)
    _look_after_copies(workflow)


def _look_after_copies(workflow: Any) -> None:
    """Delete the copies of results that are no longer needed, now and, while the lock is still held, at the end.

    A run that is about to be made has its result back where there is a copy: an orphan may be writing both at this moment.
    """
    wanted = {Path(str(path)) for job in workflow.dag.needrun_jobs() for path in job.output if job.rule.name == "train"}
    finished.release_all(but=wanted)
    for out in finished.kept():
        if out in wanted:
            what = f"{out.parent.name} was finished before its command was killed: it has that result back"
            sys.stderr.write(f"scalestudy: {what} (`scalestudy forget` measures it again)\n")
    atexit.register(finished.release_all)


def _take_lock() -> None:
    from snakemake_executor_plugin_multinode.driverlock import DriverLock, Taken

    folder = Path(".scalestudy")
    lock = DriverLock(folder)
    try:
        folder.mkdir(exist_ok=True)
        lock.take()
    except Taken as taken:
        end(UserError(str(taken)))
    except OSError as error:
        end(error)
    atexit.register(lock.release)
    lock.keep_for_ever()
    driver.announce()


def _refuse_if_overtaken(workflow: Any, begin: float) -> None:
    """A run that another driver finished after this one had begun to read the folder would be made again."""
    for job in workflow.dag.needrun_jobs():
        for result in (Path(str(path)) for path in job.output if job.rule.name == "train"):
            if result.exists() and result.stat().st_mtime > begin:
                what = "another driver finished this run while this one was reading the folder"
                end(UserError(what, str(result), "run the same command again"))
