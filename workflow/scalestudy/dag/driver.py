"""The process that reads the Snakefile: it reads the project, plans the jobs of the graph, and looks after the driver."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from snakemake import cli
from snakemake.logging import logger

from scalestudy import processes
from scalestudy.claims.fixed import fix_claims
from scalestudy.cluster.plan.hours import AnnouncedJob, Plan, make_plan
from scalestudy.cluster.resources import NAMES, refuse_caps
from scalestudy.dag.ask import PACKAGE, end
from scalestudy.dag.project import Project
from scalestudy.errors import UserError, nearest
from scalestudy.results.stored import is_skipped
from scalestudy.spec.base import SCALES
from scalestudy.spec.study import left_out_of
from scalestudy.spec.yamlfile import read_yaml
from snakemake_executor_plugin_multinode.driverlock import DriverLock, Taken
from snakemake_executor_plugin_multinode.ratelimit import drop_job_rate_limit

SOURCE = PACKAGE.parents[1]
"""The clone that this package lies in, if it lies in one; envs/conda.post-deploy.sh installs it."""


def read_project(config: Mapping[str, Any], workflow: Any) -> Project:
    """The project as a Snakefile reads it; an error that a user can remedy ends the command with a message.

    The display of profiles/default gets the project, and a dry run ends with the plan.
    """
    try:
        caps = {name: getattr(cap, "value", cap) for name, cap in workflow.global_resources.items()}
        refuse_caps(caps)
        project = Project(config, caps, lambda: targets_of(workflow), is_job=not workflow.is_main_process)
    except (UserError, OSError) as error:
        end(error)
    os.environ.update(project.environment())
    if (SOURCE / "pyproject.toml").is_file():
        os.environ["SCALESTUDY_SOURCE"] = str(SOURCE)
    if workflow.is_main_process:
        _read.append((project, workflow))
        atexit.register(show_plan, project, workflow)
        # show_plan reports an unknown target, with the nearest name, in place of Snakemake.
        logger.addFilter(
            lambda it: getattr(it, "exception", "") != "MissingRuleException" or not unknown_target(workflow)
        )
    for display in workflow.logger_manager.plugin_handlers:
        if hasattr(display, "reads"):
            display.reads(project, workflow)
    return project


_read: list[tuple[Project, Any]] = []
"""The project and the workflow of each Snakefile that this process has read."""


def before_first_job(workflow: Any, project: Project) -> None:
    """Everything that a driver does between its plan and its first job."""
    own_folder(workflow)
    # Outputs of failed jobs stay: each is whole or absent, and a result is a result.
    workflow.execution_settings.keep_incomplete = True
    for omission in left_out_of(project.requested(workflow.dag)):
        sys.stderr.write(f"scalestudy: left out: {omission}\n")
    if workflow.local_exec:
        drop_job_rate_limit(workflow.scheduler)  # one job at a time needs none, and its pauses are time of the runs
    # Snakemake works params out again once a job's inputs are there, but would record the ones that it kept from planning:
    # of a summary with results still to be made, so that it would be made twice.
    workflow.persistence._params.cache_clear()
    stop_runs_on_sigterm(workflow)
    results = [file for job in workflow.dag.needrun_jobs() if kind_of(job.rule) == "train" for file in job.output]
    for file in filter(is_skipped, results):
        # When a job fails, Snakemake puts it back, dated now: the run would not be resumed, and a newer result be lost.
        Path(file).unlink()
    if results:
        # Studies and scales share runs: claims are fixed of every study, configured or not, that has one of these runs, as
        # its file has it. `set` makes runs that claims may share, and judges none.
        runs = {Path(file).parent.name for file in results}
        for scale in SCALES:
            studies = project.all_studies(project.folder, scale, changed=False)
            fix_claims((study for study in studies if any(run.id in runs for run in study.runs)), project.folder)


def stop_runs_on_sigterm(workflow: Any) -> None:
    """SIGTERM to a local driver asks the run that it waits for to stop with a checkpoint; Snakemake alone would wait for
    the run's end. One that submits jobs leaves them running.
    """
    if not workflow.local_exec or threading.current_thread() is not threading.main_thread():
        return
    of_snakemake = signal.getsignal(signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                words = pairwise(process.cmdline())
                if any(Path(program).name == "scalestudy" and verb == "train" for program, verb in words):
                    message = f"process {process.pid} stops with a checkpoint; the same command resumes its run"
                    sys.stderr.write(f"scalestudy: {message}\n")
                    process.send_signal(signal.SIGTERM)
        if callable(of_snakemake):
            of_snakemake(number, frame)

    signal.signal(signal.SIGTERM, stop)


def own_folder(workflow: Any) -> None:
    """Take the lock of the working directory for a driver of this machine; one that submits jobs has it by its executor.

    Neither has Snakemake's own lock (`nolock` in profiles/default), which outlives a driver that was killed.
    """
    os.environ.pop(processes.DRIVER, None)  # not for jobs on other machines, whatever environment a scheduler hands on
    if not workflow.local_exec:
        return
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


def targets_of(workflow: Any) -> Sequence[str]:
    """The targets of Snakemake's call; none where it names none, or a process runs a single job."""
    settings = workflow.dag_settings
    return list((settings.targets if settings is not None else None) or ())


def unknown_target(workflow: Any) -> UserError | None:
    """The first target that is neither a rule, nor a study, nor a file that a rule makes, with the nearest name."""
    rules = list(workflow.rules)
    names = [rule.name for rule in rules]
    for target in targets_of(workflow):
        is_known = target in names or Path(target).exists() or any(rule.is_producer(target) for rule in rules)
        if not is_known and len(rules) > 1:
            return UserError(f"there is no rule, study or file `{target}`", "targets", nearest(target, names))
    return None


def show_plan(project: Project, workflow: Any) -> None:
    """Print the plan of a dry run; one that fails is a line, and a reader that has gone (`| head`) is no error."""
    if (error := unknown_target(workflow)) is not None:
        sys.stderr.write(f"scalestudy: {error}\n")
    if not workflow.dryrun or "ALL" in {quiet.name for quiet in workflow.output_settings.quiet or ()}:
        return
    from scalestudy.cluster.plan.show import table

    stream = sys.stdout if workflow.output_settings.stdout else sys.stderr
    try:
        if jobs := jobs_of(workflow):
            plan = make_plan(project, jobs, project.jobs_at_once)
            is_short = any(getattr(display, "is_short", False) for display in workflow.logger_manager.plugin_handlers)
            more = "\nEach job with its command: the same with --printshellcmds" if is_short else ""
            print(f"\n{table(plan)}{more}", file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except Exception as error:
        print(f"No plan: {type(error).__name__}: {error}", file=stream)


def kind_of(rule: Any) -> str:
    """The name that a rule has here, read off its command: a module may give it another one."""
    words = (rule.shellcmd or "").split()
    verb = words[1] if words[:1] == ["scalestudy"] else ""
    return {"prepare": "dataset", "expand": "study"}.get(verb, verb) or str(rule.name)


def jobs_of(workflow: Any) -> list[AnnouncedJob]:
    """The jobs that Snakemake would run, with the resources that its executor would get."""
    dag = workflow.dag
    return [
        AnnouncedJob(
            kind_of(job.rule),
            job.wildcards_dict,
            tuple(map(str, job.input)),
            tuple(map(str, job.output)),
            {name: value for name, value in job.resources.items() if name in NAMES},
            job.priority if isinstance(job.priority, int) else 10**9,
        )
        for job in (dag.needrun_jobs(exclude_finished=False) if dag is not None else ())
    ]


def plan_of(targets: Sequence[str], profile: str, config: Sequence[str] = ()) -> Plan:
    """The plan of `snakemake TARGETS --profile PROFILE --config …` as of now; no scheduler is needed.

    Raises UserError where Snakemake cannot build the graph, and says why on standard error.
    """
    # So quiet, Snakemake ends a dry run as soon as its graph is built.
    words = ["--profile", profile, "-n", *(["--config", *config] if config else []), "--quiet", "progress", "rules"]
    parser, parsed = cli.parse_args([*words, "--", *targets])
    _read.clear()
    with contextlib.redirect_stdout(sys.stderr):
        built = cli.args_to_api(parsed, parser)
    atexit.unregister(show_plan)
    if not built or not _read:
        unknown = unknown_target(_read[-1][1]) if _read else None
        raise unknown or UserError("Snakemake cannot plan this", " ".join(targets) or "all", "its message stands above")
    project, workflow = _read[-1]
    return make_plan(project, jobs_of(workflow), project.jobs_at_once)


def configuration_of(profile: str, config: Sequence[str]) -> Mapping[str, Any]:
    """The configuration that the Snakefile gets from a profile and `--config`."""
    _, parsed = cli.parse_args(["--profile", profile, *(["--config", *config] if config else [])])
    configuration: dict[str, Any] = {}
    for file in parsed.configfile or ():
        configuration |= read_yaml(file).data
    try:
        return configuration | dict(cli.parse_config(parsed.config))
    except ValueError as error:
        what = f"cannot be read: {' '.join(str(error).split())}"
        raise UserError(what, "--config", "write key=value, for example scale=paper") from None
