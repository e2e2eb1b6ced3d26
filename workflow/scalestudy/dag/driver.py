"""What the Snakefile does in the process that reads it: read the project, and look after the driver."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from scalestudy import processes
from scalestudy.claims import fixed
from scalestudy.cluster.resources import refuse_caps
from scalestudy.dag.plan import plan_when_done
from scalestudy.dag.project import Project
from scalestudy.dag.rules import PACKAGE, end
from scalestudy.errors import UserError
from scalestudy.spec.capacity import left_out_of
from snakemake_executor_plugin_multinode.ratelimit import drop_job_rate_limit

SOURCE = PACKAGE.parents[1]
"""The clone that this package lies in, if it lies in one; envs/conda.post-deploy.sh installs it."""


def read_project(config: Mapping[str, Any], workflow: Any) -> Project:
    """The project as a Snakefile reads it; an error that a user can remedy ends the command with a message.

    The display of profiles/default gets the project, and a dry run ends with the plan.
    """
    try:
        caps = plain_caps(workflow.global_resources)
        refuse_caps(caps)
        project = Project(config, caps)
    except (UserError, OSError) as error:
        end(error)
    os.environ.update(project.environment())
    if (SOURCE / "pyproject.toml").is_file():
        os.environ["SCALESTUDY_SOURCE"] = str(SOURCE)
    if workflow.is_main_process:
        plan_when_done(project, workflow)
    for display in workflow.logger_manager.plugin_handlers:
        if hasattr(display, "reads"):
            display.reads(project, workflow)
    return project


def keep_outputs(workflow: Any) -> None:
    """Keep Snakemake from deleting the outputs of failed jobs: here each is whole or absent, and a result is a result."""
    workflow.execution_settings.keep_incomplete = True


def plain_caps(caps: Mapping[str, Any]) -> dict[str, Any]:
    """Snakemake's caps by name, as numbers and words."""
    return {name: getattr(cap, "value", cap) for name, cap in caps.items()}


def fix_claims(workflow: Any, project: Project) -> None:
    """Where runs are about to be made: write what the claims are that they will judge.

    Studies share runs, so it is done for every study of this scale, configured or not, as its file has it: `set` makes
    runs that claims may share, and judges none.
    """
    if any(job.rule.name == "train" for job in workflow.dag.needrun_jobs()):
        machine = project.config.folder
        fixed.fix_claims(project.runs.all_studies(machine, project.config.scale, changed=False), machine)


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


def own_folder(workflow: Any) -> None:
    """Take the lock of the working directory for a driver of this machine; one that submits jobs has it by its executor.

    Neither has Snakemake's own lock (`nolock` in profiles/default), which outlives a driver that was killed.
    """
    processes.conceal_driver()
    if workflow.local_exec:
        _take_lock()


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
    processes.announce_driver()
