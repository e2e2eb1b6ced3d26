"""`scalestudy new`: a commented study that runs, to be changed by hand."""

from __future__ import annotations

import re
from pathlib import Path

import click

from scalestudy.errors import UserError
from scalestudy.files import write_text

TEMPLATE = Path(__file__).with_name("study.yaml")


@click.command(name="new")
@click.argument("name")
def command(name: str) -> None:
    """Write config/studies/NAME.yaml: a commented study that can be run as it is. No file is replaced.

    Example: scalestudy new batch_size
    """
    from scalestudy.spec.config import NAME
    from scalestudy.spec.layout import STUDIES
    from scalestudy.spec.study_file import RESERVED

    file = STUDIES / f"{name}.yaml"
    if not STUDIES.is_dir():
        raise UserError("there is no project here", str(Path.cwd()), "run the command at the top of the project")
    if not re.fullmatch(NAME, name) or name in RESERVED:
        remedy = "use lower-case letters, digits and `_`, starting with a letter; not the name of a rule"
        raise UserError(f"`{name}` cannot be the name of a study", "new", remedy)
    if file.exists():
        raise UserError("is there already, and is not replaced", str(file), "choose another name, or edit it")
    write_text(file, TEMPLATE.read_text(encoding="utf-8").replace("NAME", name))
    click.echo(f"{file}\n  scalestudy check\n  snakemake {name} --profile profiles/local -n")
