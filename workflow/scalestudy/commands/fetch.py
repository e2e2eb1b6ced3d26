"""`scalestudy fetch`: on a host with internet, what jobs on nodes without it would download."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from scalestudy.commands.options import CONFIG, FILE, PROFILE
from scalestudy.errors import Skipped, UserError


@click.command(name="fetch")
@click.argument("studies", nargs=-1)
@PROFILE
@CONFIG
@click.option(
    "--wheels", default=None, type=FILE, metavar="FOLDER", help="Also the packages that `make setup` installs."
)
@click.option("--lock", default="envs/requirements.txt", show_default=True, type=FILE, help="What --wheels reads.")
def command(studies: tuple[str, ...], profile: str, config: tuple[str, ...], wheels: Path | None, lock: Path) -> None:
    """Download in advance what jobs of these studies need; default: all configured studies.

    Run it on a host that has internet and the home folder of the nodes, such as a login node. What is there already is not
    fetched again.

    \b
    Example: scalestudy fetch gpu_scaling
    Example: scalestudy fetch gpu_scaling --profile profiles/slurm --config scale=paper
    Example: scalestudy fetch --wheels wheels
    """
    if wheels is not None:
        fetch_wheels(lock, wheels)
    if studies or wheels is None:
        fetch_for(studies, profile, config)


def fetch_for(studies: Sequence[str], profile: str, config: Sequence[str]) -> None:
    """Fetch, and say where it lies. Raises UserError where something cannot be had."""
    from scalestudy.dag.downloads import of_runs
    from scalestudy.dag.plan import configuration_of
    from scalestudy.dag.project import Project
    from scalestudy.spec.config import Site, checked
    from scalestudy.spec.yamlfile import read_yaml

    given = configuration_of(profile, config)
    project = Project({**given, **({"studies": ",".join(studies)} if studies else {})})
    project.runs.raise_errors()
    site = Site() if project.site is None else checked(Site, read_yaml(project.site))
    runs = [run for study in project.chosen for run in study.runs]
    wanted = of_runs(runs, project.config.folder, site)
    for each in wanted:
        try:
            click.echo(f"{each.what}: {each.fetch()}")
        except Skipped as error:
            raise UserError(str(error), "fetch") from None
    if not wanted:
        click.echo("jobs of these studies download nothing")


def fetch_wheels(lock: Path, folder: Path) -> None:
    """Every package of a lock file, for this Python and this kind of machine."""
    if not lock.is_file():
        raise UserError("there is no such lock file", str(lock), "run the command at the top of the project")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    done = subprocess.run([*pip, "--require-hashes", "-r", str(lock), "-d", str(folder)], check=False)
    if done.returncode:
        raise UserError("pip could not download it (its words are above)", str(lock), "run the same command again")
    click.echo(f"{folder}: on the other host, PIP_NO_INDEX=1 PIP_FIND_LINKS={folder.absolute()} make setup")
