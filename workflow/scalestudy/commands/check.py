"""`scalestudy check`: the configuration, without running anything."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.commands.options import FILE

CONFIG_FILE = Path("config/config.yaml")


@click.command(name="check")
@click.option("--config", "file", default=CONFIG_FILE, show_default=True, type=FILE)
def command(file: Path) -> None:
    """Check the configuration: every study at every scale that it has.

    Example: scalestudy check
    """
    from scalestudy.errors import UserError, raise_all
    from scalestudy.spec.config import SCALES, read_config, read_machine
    from scalestudy.spec.read_study import NoScale, find_studies

    config = read_config(file)
    machine = read_machine(config.machine)
    names = None if config.studies == "all" else config.studies
    errors: list[UserError] = []
    left_out: dict[str, None] = {}
    skipped: dict[str, None] = {}
    for scale in SCALES:
        found = find_studies(names, scale, machine, tags=config.tags, machine_name=config.machine)
        is_chosen = scale == config.scale
        errors += [error for error in found.errors() if is_chosen or not isinstance(error, NoScale)]
        if is_chosen and not found.studies and not found.wrong:
            errors.append(UserError(f"no configured study has scale `{scale}`", str(file), "choose another scale"))
        skipped |= dict.fromkeys(map(str, found.skipped))
        left_out |= dict.fromkeys(
            f"{scale}: {study.name}: {said}" for study in found.studies for said in study.left_out
        )
        runs = {run.id for study in found.studies for run in study.runs}
        click.echo(f"{scale:5}  {len(found.studies)} studies, {len(runs)} runs{'  (chosen)' if is_chosen else ''}")
    for sentence in skipped:
        click.echo(f"skipped: {sentence}", err=True)
    for sentence in left_out:
        click.echo(f"left out: {sentence}")
    raise_all(errors)
