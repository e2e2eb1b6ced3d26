"""`scalestudy check`: the configuration without running anything, and its keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from scalestudy.commands.options import FILE

CONFIG_FILE = Path("config/config.yaml")


@click.command(name="check")
@click.option("--config", "file", default=CONFIG_FILE, show_default=True, type=FILE)
@click.option(
    "--keys",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[WORD]",
    help="List the keys of all files, or those whose name contains WORD.",
)
def command(file: Path, keys: str | None) -> None:
    """Check the configuration: every study at every scale that it has.

    \b
    Example: scalestudy check
    Example: scalestudy check --keys batch
    """
    if keys is not None:
        click.echo("\n".join(listed(keys)) or f"no key has `{keys}` in its name")
        return
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


def listed(word: str) -> Iterator[str]:
    """The keys with `word` in their names, each below the file or the choice that has it."""
    from scalestudy.spec.schema import key_reference

    heading = ""
    for line in key_reference().splitlines():
        if line.startswith("#"):
            heading = line.strip("# ").replace("`", "")
        elif line.startswith("| `"):
            name, takes, default, meaning = (
                cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]
            )
            if word not in name:
                continue
            if heading:
                yield f"\n{heading}"
                heading = ""
            takes = f"{takes}, default {default}" if default not in ("", "needed") else f"{takes} {default}".strip()
            yield f"  {name.strip('`')}: {takes}".replace("`", "")
            yield f"      {meaning}" if meaning else "      a map; its keys follow"
