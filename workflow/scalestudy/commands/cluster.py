"""Verbs about machines: `plan`, `doctor`, `status`."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalestudy import processes
from scalestudy.commands.options import CONFIG, PROFILE, TEXT_FILE
from scalestudy.errors import UserError, nearest
from scalestudy.files import read_json, write_text
from snakemake_logger_plugin_scalestudy.progress import FILE, Progress, current, heading, stopped

if TYPE_CHECKING:
    from scalestudy.cluster.doctor.findings import Finding
    from scalestudy.cluster.plan.planned import Plan


OVER_BUDGET = 3


@dataclass(frozen=True)
class PlanOptions:
    """The options of the command line."""

    config: Sequence[str]
    changes: Sequence[str]
    json_file: str | None
    csv_file: str | None
    by: str
    details: bool
    proposal: str | None
    budget: float | None
    actual: bool


@click.command(name="plan")
@click.argument("targets", nargs=-1)
@PROFILE
@CONFIG
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a key in every study.")
@click.option(
    "--json",
    "json_file",
    type=TEXT_FILE,
    default=None,
    metavar="FILE|-",
    help="The whole plan as JSON; -: standard output.",
)
@click.option("--csv", "csv_file", type=TEXT_FILE, default=None, metavar="FILE|-", help="The table as CSV.")
@click.option(
    "--by", default="", metavar="strategy,ranks", help="One line per study and these keys instead of one per study."
)
@click.option("--details", is_flag=True, help="Further columns, makespan, chains, storage, energy, assumptions.")
@click.option(
    "--proposal", type=TEXT_FILE, default=None, metavar="FILE.md", help="The page of an application for computing time."
)
@click.option("--budget", type=float, default=None, metavar="H", help="GPU hours; more to request ends with status 3.")
@click.option("--actual", is_flag=True, help="Compare what was planned with what finished runs have used.")
def plan(targets: tuple[str, ...], profile: str, **options: Any) -> None:
    """Plan what would run now: jobs, GPU hours, storage, makespan, before anything is submitted.

    \b
    Example: scalestudy plan --profile profiles/pbs
    Example: scalestudy plan gpu_scaling --profile profiles/slurm --set repeats=5 --json -
    """
    sys.exit(show_plan(targets, profile, PlanOptions(**options)))


def show_plan(targets: Sequence[str], profile: str, options: PlanOptions) -> int:
    """Print or write the plan; returns the exit status."""
    from scalestudy.cluster.plan import show
    from scalestudy.commands.run import configuration
    from scalestudy.dag.driver import plan_of

    config = [*options.config, *(target for target in targets if "=" in target)]
    targets = [target for target in targets if "=" not in target]
    if options.json_file == "-" and options.csv_file == "-":
        raise UserError("only one of them can go to standard output", "plan", "write one of --json and --csv to a file")
    if options.actual:
        return _show_actual(targets, profile, config, options.json_file)
    plan, project = plan_of(targets, profile, configuration(config, None, options.changes, None))
    _write(plan, options)
    if options.proposal is not None:
        from scalestudy.cluster.plan.proposal import proposal

        write_text(options.proposal, proposal(plan, project.chosen, date.today()))
    needed_h = plan.to_request(plan.submitted, "gpu")
    if options.budget is not None and needed_h > options.budget:
        click.echo(show.table(plan, show.GROUPS), err=True)
        click.echo(f"over budget: {show.digits(needed_h)} GPU hours to request, {options.budget:,g} allowed", err=True)
        return OVER_BUDGET
    return 0


def _show_actual(targets: Sequence[str], profile: str, config: Sequence[str], json_file: str | None) -> int:
    from scalestudy.cluster.ledger import show_actual
    from scalestudy.dag.driver import plan_of

    _, project = plan_of(targets, profile, config)
    text, data = show_actual(targets, project.chosen, project.config.folder)
    if json_file != "-":
        click.echo(text)
    if json_file is not None:
        _put(json_file, json.dumps(data, indent=1) + "\n")
    return 0


def _write(plan: Plan, options: PlanOptions) -> None:
    from scalestudy.cluster.plan import show

    if "-" not in (options.json_file, options.csv_file):
        click.echo(show.table(plan, groups_of(options.by), options.details))
    if options.json_file is not None:
        _put(options.json_file, json.dumps(show.as_json(plan), indent=1, ensure_ascii=False) + "\n")
    if options.csv_file is not None:
        _put(options.csv_file, show.as_csv(plan))


def groups_of(by: str) -> list[str]:
    """`strategy,ranks` as a list. UserError for another word."""
    from scalestudy.cluster.plan.show import GROUPS

    found = [name.strip() for name in by.split(",") if name.strip()]
    for name in found:
        if name not in GROUPS:
            raise UserError(f"a plan has no groups by `{name}`", "--by", nearest(name, GROUPS))
    return found


def _put(file: str, text: str) -> None:
    if file == "-":
        sys.stdout.write(text)
    else:
        write_text(file, text)


MISSING = 1
NODES = 2


@click.command(name="doctor")
@click.option("--profile", default="profiles/local", show_default=True, help="Profile whose nodes are examined.")
@CONFIG
@click.option(
    "--nodes", type=click.IntRange(1), default=None, help="Nodes of the job; default 2, or the machine's if fewer."
)
@click.option("--wait", type=float, default=600, show_default=True, help="Seconds to wait for the job.")
@click.option("--json", "json_file", type=TEXT_FILE, default=None, metavar="FILE|-", help="What was found, as JSON.")
@click.option(
    "--write",
    "name",
    default=None,
    metavar="NAME",
    help="Write config/machines/NAME.yaml and profiles/NAME for the cluster of this host.",
)
@click.option("--hosts", is_flag=True, help="Only ask the scheduler for the names of the nodes, for the machine file.")
@click.option("--in-job", nargs=2, hidden=True, default=None)
def doctor(in_job: tuple[str, str] | None, hosts: bool, **options: Any) -> None:
    """Examine the nodes where runs would run: Python, torch, CUDA, NCCL, MPI, fabric, scratch, clock, shared storage.

    The site's modules, environment or container are tried first. Machine and site file are compared with what the
    scheduler and the nodes say. With --write they are created from it, for a cluster that has none yet.

    \b
    Example: scalestudy doctor
    Example: scalestudy doctor --profile profiles/pbs
    Example: scalestudy doctor --write my_cluster
    Example: scalestudy doctor --hosts --profile profiles/slurm
    """
    if in_job is not None:
        from scalestudy.cluster.doctor.job import on_nodes

        sys.exit(on_nodes(Path(in_job[0]), in_job[1]))
    if hosts:
        show_hosts(options["profile"], options["config"])
        return
    sys.exit(show_doctor(**options))


def show_hosts(profile: str, config: Sequence[str]) -> None:
    """Print the nodes of a profile's cluster, as a line for its machine file."""
    from scalestudy.cluster.doctor.examine import hosts_of_profile
    from scalestudy.dag.driver import configuration_of
    from scalestudy.site_fault import SITE

    given = configuration_of(profile, config)
    if "site" in given:
        os.environ[SITE] = str(Path(given["site"]).absolute())
    click.echo(hosts_of_profile())


def show_doctor(
    profile: str, config: Sequence[str], nodes: int | None, wait: float, json_file: str | None, name: str | None
) -> int:
    """Print features and lacks of each node; exit status 1 where there is a remedy to apply."""
    if name is not None:
        return show_written(name, nodes or NODES, wait, json_file)
    from scalestudy.cluster.doctor.examine import examine
    from scalestudy.dag.driver import configuration_of
    from scalestudy.site_fault import SITE
    from scalestudy.spec.config import read_config, read_machine, site_of

    given = configuration_of(profile, config)
    if (site := site_of(given)) is not None:
        os.environ[SITE] = str(Path(site).absolute())
    choice = read_config("config/config.yaml", given)
    machine = read_machine(choice.machine)
    count = nodes or min(NODES, machine.nodes or 1)
    return show(*examine(choice, profile, count, wait), json_file)


def show_written(name: str, nodes: int, wait: float, json_file: str | None) -> int:
    """Write machine file and profile, print files and findings; exit status 1 where there is a remedy to apply."""
    from scalestudy.cluster.doctor.examine import write_profile
    from scalestudy.cluster.doctor.write import to_correct

    if not Path("config/machines").is_dir():
        raise UserError("there is no config/machines here", str(Path.cwd()), "run it at the top of the project")
    files, reports, findings = write_profile(name, nodes, wait)
    status = show(reports, findings, json_file)
    lines = to_correct(files)
    said = [f"wrote {', '.join(map(str, files))}"]
    said += ["Look at:", *(f"  {line}" for line in lines)] if lines else []
    said += [f"Next: scalestudy doctor --profile profiles/{name}, then scalestudy run --profile profiles/{name}"]
    click.echo("\n".join(said), err=json_file == "-")
    return status


def show(reports: Sequence[dict[str, Any]], findings: Sequence[Finding], json_file: str | None) -> int:
    """Print the findings, or write them as JSON; exit status 1 where there is a remedy to apply."""
    from scalestudy.cluster.doctor.examine import text

    if json_file is not None:
        data = {"nodes": reports, "findings": [vars(finding) for finding in findings]}
        plain = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        if json_file == "-":
            sys.stdout.write(plain)
        else:
            write_text(json_file, plain)
    if json_file != "-":
        click.echo(text(reports, findings))
    return MISSING if any(finding.remedy for finding in findings) else 0


@click.command(name="status")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(as_json: bool) -> None:
    """Show the progress of the work in this folder, and the command that resumes it.

    Example: scalestudy status
    """
    now = time.time()
    progress = read_progress()
    if as_json:
        click.echo(json.dumps(to_dict(progress), indent=1))
    else:
        click.echo("\n".join(lines(progress, now)))


def read_progress() -> Progress:
    """Read the driver's progress, with runs that finished after it was killed. UserError where there is none."""
    remedy = "start the work first: snakemake all --profile profiles/local"
    if not Path(FILE).is_file():
        raise UserError("nothing has been started in this folder", FILE, remedy)
    try:
        progress = Progress.of_dict(read_json(Path(FILE)))
    except (KeyError, TypeError):
        raise UserError("cannot be read as the progress of a workflow", FILE, remedy) from None
    gone = driver_is_gone(progress)
    for task in progress.of("waiting", "running", "failed"):
        result = Path(task.output)
        if result.exists() and result.stat().st_mtime >= progress.began:
            progress.end(task, result.stat().st_mtime)
        elif gone and task.state != "failed":
            task.state, task.reason = "waiting", ""
    return progress


def driver_is_gone(progress: Progress) -> bool:
    """Whether the driver has ended; of one on another host only its own record is known."""
    if not progress.process:
        return True
    return progress.host == socket.gethostname() and processes.is_gone(progress.process)


def lines(progress: Progress, now: float) -> Iterator[str]:
    """The answer first; then running jobs, the studies, the driver."""
    yield heading(progress)
    yield from (f"  {line}" for line in current(progress, now))
    for study, counts in _by_study(progress).items():
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        yield f"  {study:20} {counts['done']} of {counts.total()} runs done{failed}"
    if not driver_is_gone(progress):
        yield f"The driver is process {progress.process.partition(':')[0]} on {progress.host}."
    elif progress.of("waiting", "running", "failed"):
        yield f"No driver is running. {stopped(progress)}"
    else:
        yield "Everything is done; no driver is running."


def to_dict(progress: Progress) -> dict[str, Any]:
    """The same as plain data; times in seconds."""
    gone = driver_is_gone(progress)
    return {
        "runs": {state: progress.runs[state] for state in ("waiting", "running", "done", "failed")},
        "mean_s": progress.mean_s,
        "running": [{"name": task.name, "output": task.output, "since": task.began} for task in progress.of("running")],
        "queued": [{"name": task.name, "reason": task.reason} for task in progress.of("waiting") if task.reason],
        "studies": {study: dict(counts) for study, counts in _by_study(progress).items()},
        "driver": None if gone else {"host": progress.host, "process": progress.process},
        "resume": progress.command if progress.of("waiting", "running", "failed") else None,
    }


def _by_study(progress: Progress) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for task in progress.tasks.values():
        if task.rule == "train":
            counts.setdefault(task.study, Counter())[task.state] += 1
    return counts
