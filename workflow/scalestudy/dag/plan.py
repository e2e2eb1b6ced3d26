"""The plan of the jobs in a graph that Snakemake has just built: under `snakemake -n`, and for `scalestudy plan`."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalestudy.cluster.plan.planned import AnnouncedJob, Plan, make_plan
from scalestudy.cluster.resources import NAMES
from scalestudy.dag.project import Project
from scalestudy.errors import UserError, nearest
from scalestudy.spec.yamlfile import read_yaml

_read: list[tuple[Project, Any]] = []
"""The project and the workflow of each Snakefile that this process has read."""


def plan_when_done(project: Project, workflow: Any) -> None:
    """Print the plan below a dry run of this process, whatever its profile and its display."""
    _read.append((project, workflow))
    atexit.register(show_plan, project, workflow)


def show_plan(project: Project, workflow: Any) -> None:
    """Print the plan of a dry run; one that fails is a line, and a reader that has gone (`| head`) is no error."""
    if not workflow.dryrun or "ALL" in {quiet.name for quiet in workflow.output_settings.quiet or ()}:
        return
    from scalestudy.cluster.plan.show import table

    stream = sys.stdout if workflow.output_settings.stdout else sys.stderr
    try:
        if jobs := jobs_of(workflow):
            plan = make_plan(project, jobs, project.resources.jobs_at_once)
            is_short = any(getattr(display, "is_short", False) for display in workflow.logger_manager.plugin_handlers)
            more = "\nEach job with its command: the same with --printshellcmds" if is_short else ""
            print(f"\n{table(plan)}{more}", file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except Exception as error:
        print(f"No plan: {type(error).__name__}: {error}", file=stream)


def jobs_of(workflow: Any) -> list[AnnouncedJob]:
    """The jobs that Snakemake would run, with the resources that its executor would get."""
    dag = workflow.dag
    return [
        AnnouncedJob(
            dag.jobid(job),
            job.rule.name,
            dict(job.wildcards_dict),
            tuple(map(str, job.input)),
            tuple(map(str, job.output)),
            {name: value for name, value in job.resources.items() if name in (*NAMES, "study")},
            job.priority if isinstance(job.priority, int) else 10**9,
        )
        for job in (dag.needrun_jobs(exclude_finished=False) if dag is not None else ())
    ]


def plan_of(targets: Sequence[str], profile: str, config: Sequence[str] = ()) -> tuple[Plan, Project]:
    """The plan of `snakemake TARGETS --profile PROFILE --config …` as of now; no scheduler is needed.

    Raises UserError where Snakemake cannot build the graph, and says why on standard error.
    """
    from snakemake import cli

    known_profile(profile)
    # So quiet, Snakemake ends a dry run as soon as its graph is built.
    words = ["--profile", profile, "-n", *(["--config", *config] if config else []), "--quiet", "progress", "rules"]
    parser, parsed = cli.parse_args([*words, "--", *targets])
    _read.clear()
    with contextlib.redirect_stdout(sys.stderr):
        built = cli.args_to_api(parsed, parser)
    atexit.unregister(show_plan)
    if not built or not _read:
        raise UserError("Snakemake cannot plan this", " ".join(targets) or "all", "its message stands above")
    project, workflow = _read[-1]
    return make_plan(project, jobs_of(workflow), project.resources.jobs_at_once), project


def known_profile(profile: str) -> None:
    """Raise UserError where there is no project, or no such profile in it."""
    if not any(Path(name).is_file() for name in ("Snakefile", "workflow/Snakefile")):
        raise UserError("there is no Snakefile here", str(Path.cwd()), "run the command at the top of the project")
    if not any((Path(profile) / name).is_file() for name in ("config.yaml", "profile.yaml")):
        known = sorted(str(path.parent) for path in Path("profiles").glob("*/config.yaml"))
        raise UserError("there is no such profile", profile, nearest(profile, known))


def configuration_of(profile: str, config: Sequence[str]) -> Mapping[str, Any]:
    """The configuration that the Snakefile gets from a profile and `--config`."""
    import yaml
    from snakemake import cli

    known_profile(profile)
    _, parsed = cli.parse_args(["--profile", profile, *(["--config", *config] if config else [])])
    found: dict[str, Any] = {}
    for file in parsed.configfile or ():
        found |= read_yaml(file).data
    try:
        return found | dict(cli.parse_config(parsed.config))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        what = f"cannot be read: {' '.join(str(error).split())}"
        raise UserError(what, "--config", "write key=value, for example scale=paper") from None
