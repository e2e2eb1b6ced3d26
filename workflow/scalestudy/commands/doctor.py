"""`scalestudy doctor`: what a site has, and what is missing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalestudy.commands.options import CONFIG
from scalestudy.errors import UserError
from scalestudy.files import write_text

if TYPE_CHECKING:
    from scalestudy.cluster.doctor.findings import Finding

MISSING = 1
NODES = 2


@click.command(name="doctor")
@click.option("--profile", default="profiles/local", show_default=True, help="Profile whose nodes are examined.")
@CONFIG
@click.option(
    "--nodes", type=click.IntRange(1), default=None, help="Nodes of the job; default 2, or the machine's if fewer."
)
@click.option("--wait", type=float, default=600, show_default=True, help="Seconds to wait for the job.")
@click.option("--json", "json_file", default=None, metavar="FILE|-", help="What was found, as JSON.")
@click.option(
    "--write",
    "name",
    default=None,
    metavar="NAME",
    help="Write config/machines/NAME.yaml and profiles/NAME for the cluster of this host.",
)
@click.option("--hosts", is_flag=True, help="Only ask the scheduler for the names of the nodes, for the machine file.")
@click.option("--in-job", nargs=2, hidden=True, default=None)
def command(in_job: tuple[str, str] | None, hosts: bool, **options: Any) -> None:
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
        from scalestudy.cluster.doctor.probe_job import on_nodes

        sys.exit(on_nodes(Path(in_job[0]), in_job[1]))
    if hosts:
        show_hosts(options["profile"], options["config"])
        return
    sys.exit(show_doctor(**options))


def show_hosts(profile: str, config: Sequence[str]) -> None:
    """Print the nodes of a profile's cluster, as a line for its machine file."""
    from scalestudy.cluster.doctor.examine import hosts_of_profile
    from scalestudy.dag.plan import configuration_of
    from scalestudy.site_fault import SITE

    given = configuration_of(profile, config)
    if "site" in given:
        os.environ[SITE] = str(Path(given["site"]).absolute())
    click.echo(hosts_of_profile())


def show_doctor(
    profile: str, config: Sequence[str], nodes: int | None, wait: float, json_file: str | None, name: str | None
) -> int:
    """Print what each node has and lacks; exit status 1 where something is to be done."""
    if name is not None:
        return show_written(name, nodes or NODES, wait, json_file)
    from scalestudy.cluster.doctor.examine import examine
    from scalestudy.dag.plan import configuration_of
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
    """Write machine file and profile, print what was written and found; exit status 1 where something is to be done."""
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
    """Print what was found, or write it as JSON; exit status 1 where something is to be done."""
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
