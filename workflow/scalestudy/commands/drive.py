"""`scalestudy drive`: the driver of a long study as a job, where login nodes end long processes."""

from __future__ import annotations

import math
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from scalestudy.commands.options import BUDGET, CONFIG, PROFILE, SCALE_IF_NAMED, SET
from scalestudy.errors import UserError


@click.command(name="drive")
@click.argument("targets", nargs=-1)
@PROFILE
@CONFIG
@SCALE_IF_NAMED
@SET
@BUDGET
@click.option(
    "--hours",
    type=click.FloatRange(0.05, 10_000),
    default=24,
    show_default=True,
    help="Walltime of one driver's job, hours.",
)
@click.option("--queue", default=None, help="Queue of the driver's job; default: the site's.")
@click.option(
    "--request", default=None, metavar="TEMPLATE", help="Resource request of the driver's job; default: one core."
)
@click.option("--option", "options", multiple=True, metavar="WORD", help="Another word of its submit line.")
@click.option("--in-job", hidden=True, default=None, type=click.Path(path_type=Path))
def command(in_job: Path | None, **options: Any) -> None:
    """Run studies as `scalestudy run` does, with the driver as a job of one core.

    Shortly before its walltime ends the driver submits its successor and exits; the successor adopts the study's jobs.
    Jobs must be allowed to submit jobs.

    \b
    Example: scalestudy drive gpu_scaling --profile profiles/slurm --scale paper
    Example: scalestudy drive --profile profiles/pbs --hours 72 --queue long
    """
    if in_job is not None:
        from scalestudy.cluster import drive

        sys.exit(drive.in_job(in_job))
    submit(**options)


def submit(
    targets: tuple[str, ...],
    profile: str,
    config: tuple[str, ...],
    scale: str | None,
    changes: tuple[str, ...],
    budget: float | None,
    hours: float,
    queue: str | None,
    request: str | None,
    options: tuple[str, ...],
) -> None:
    """Submit the driver, and say where it is."""
    from scalestudy.cluster import drive
    from scalestudy.commands.run import configuration, snakemake_command
    from scalestudy.dag.dryrun import configuration_of
    from scalestudy.site_fault import SITE
    from scalestudy.spec.config import read_site

    config = (*config, *(target for target in targets if "=" in target))
    keys = configuration(config, scale, changes, budget)
    words = snakemake_command([target for target in targets if "=" not in target], profile, keys)
    given = configuration_of(profile, keys)
    if "site" in given:
        os.environ[SITE] = str(Path(given["site"]).absolute())
    kind = read_site().scheduler.get("kind")
    if kind is None:
        remedy = "use a profile for Slurm, PBS or Grid Engine; elsewhere: scalestudy run"
        raise UserError(f"{profile} submits nothing", str(given.get("site", profile)), remedy)
    plan = drive.DrivePlan(drive.commands_of(words), math.ceil(60 * hours), queue, request, options)
    job, log = drive.start(plan)
    click.echo(shlex.join(words))
    click.echo(f"runs in job {job}; its log: {os.path.relpath(log)}")
    click.echo(f"See: scalestudy status. Stop the driver: {drive.stop_hint(kind, job)}; the study's jobs continue.")
