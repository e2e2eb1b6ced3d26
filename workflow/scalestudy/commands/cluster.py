"""Verbs about machines: `plan`, `doctor`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from scalestudy.commands.options import CONFIG, PROFILE, studies_of
from scalestudy.errors import UserError
from scalestudy.site_fault import SITE

OVER_BUDGET, MISSING = 3, 1
"""Exit statuses."""
NODES = 2


@click.command(name="plan")
@click.argument("targets", nargs=-1)
@PROFILE
@CONFIG
@click.option(
    "--json",
    "json_file",
    type=click.Path(allow_dash=True),
    metavar="FILE|-",
    help="The plan as JSON; -: standard output.",
)
@click.option("--budget", type=click.FloatRange(0), metavar="H", help="GPU hours; more to request ends with status 3.")
def plan(
    targets: tuple[str, ...],
    profile: str,
    config: tuple[str, ...],
    json_file: str | None,
    budget: float | None,
) -> None:
    """Plan what would run now, before anything is submitted: jobs, GPU hours, makespan; the time without a scheduler.

    \b
    Example: scalestudy plan --profile profiles/pbs
    Example: scalestudy plan gpu_scaling --profile profiles/slurm --config set=repeats=5 --json -
    """
    from scalestudy.cluster.plan import show
    from scalestudy.dag.driver import plan_of

    names, keys = targets_and_config(targets, config)
    plan = plan_of(names, profile, keys)
    if json_file != "-":
        click.echo(show.table(plan))
    if json_file is not None:
        with click.open_file(json_file, "w", encoding="utf-8") as file:
            file.write(json.dumps(show.as_json(plan), indent=1, ensure_ascii=False) + "\n")
    needed_h = plan.to_request(plan.submitted, "gpu")
    if budget is not None and needed_h > budget:
        click.echo(f"over budget: {show.digits(needed_h)} GPU hours to request, {budget:,g} allowed", err=True)
        sys.exit(OVER_BUDGET)


def targets_and_config(words: Sequence[str], config: Sequence[str]) -> tuple[list[str], list[str]]:
    """Targets among the words of a command line, and the words of one `--config`; UserError for one without a value."""
    if wrong := [word for word in config if "=" not in word]:
        raise UserError(f"`{wrong[0]}` is not a setting", "--config", "write key=value, for example scale=paper")
    return [word for word in words if "=" not in word], [*config, *(word for word in words if "=" in word)]


@click.command(name="doctor")
@click.option("--profile", default="profiles/local", show_default=True, help="Profile whose nodes are examined.")
@CONFIG
@click.option("--nodes", type=click.IntRange(1), help="Nodes of the job; default 2, or the machine's if fewer.")
@click.option("--wait", type=float, default=600, show_default=True, help="Seconds to wait for the job.")
@click.option(
    "--links", is_flag=True, help="Only write the rates of links that the study probe measured into the machine file."
)
@click.option("--in-job", nargs=2, hidden=True, default=None)
def doctor(
    profile: str,
    config: tuple[str, ...],
    nodes: int | None,
    wait: float,
    links: bool,
    in_job: tuple[str, str] | None,
) -> None:
    """Examine the nodes where runs would run: Python, torch, CUDA, NCCL, MPI, fabric, scratch, clock, shared storage.

    The site's modules, environment or container are tried first. Machine and site file are compared with what the
    scheduler and the nodes say.

    \b
    Example: scalestudy doctor
    Example: scalestudy doctor --profile profiles/pbs
    Example: scalestudy doctor --links --profile profiles/slurm --config scale=paper
    """
    if in_job is not None:
        from scalestudy.cluster.doctor.job import on_nodes

        sys.exit(on_nodes(Path(in_job[0]), in_job[1]))
    from scalestudy.cluster.doctor import examine
    from scalestudy.dag.driver import configuration_of
    from scalestudy.spec.config import read_config, read_machine

    given = configuration_of(profile, config)
    if (site := given.get("site")) is not None:
        os.environ[SITE] = str(Path(site).absolute())
    choice = read_config("config/config.yaml", given)
    if links:
        from scalestudy.cluster.doctor.links import write_links

        click.echo(write_links(studies_of(choice.folder, choice.scale, ["probe"])[0], choice.folder))
        return
    count = nodes or min(NODES, read_machine(choice.machine).nodes or 1)
    reports, findings = examine.examine(choice.machine, profile, count, wait)
    click.echo(examine.text(reports, findings))
    sys.exit(MISSING if any(finding.remedy for finding in findings) else 0)
