"""Verbs about study files: `check`, `new`, `expand`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from scalestudy.commands.options import of_study
from scalestudy.errors import UserError
from scalestudy.files import write_text

CONFIG_FILE = "config/config.yaml"


@click.command(name="check")
@click.option(
    "--keys",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[WORD]",
    help="List the keys of all files, or those whose name contains WORD.",
)
def check(keys: str | None) -> None:
    """Check the configuration: every study at every scale that it has.

    \b
    Example: scalestudy check
    Example: scalestudy check --keys batch
    """
    if keys is not None:
        click.echo("\n".join(listed(keys)) or f"no key has `{keys}` in its name")
        return
    from scalestudy.claims.check import claims_of_mistyped_studies
    from scalestudy.errors import raise_all
    from scalestudy.spec.base import SCALES
    from scalestudy.spec.config import read_config, read_machine, read_site
    from scalestudy.spec.labels import counted
    from scalestudy.spec.read_study import NoScale, find_studies

    config = read_config(CONFIG_FILE)
    machine = read_machine(config.machine)
    names = None if config.studies == "all" else config.studies
    read_site()  # its errors
    errors: list[UserError] = []
    remarks: dict[str, None] = {}
    for scale in SCALES:
        search_result = find_studies(names, scale, machine, machine_name=config.machine)
        is_chosen = scale == config.scale
        errors += [error for error in search_result.errors() if is_chosen or not isinstance(error, NoScale)]
        if is_chosen and not search_result.studies and not search_result.wrong:
            errors.append(UserError(f"no configured study has scale `{scale}`", CONFIG_FILE, "choose another scale"))
        left_out = ((study.name, omission) for study in search_result.studies for omission in study.left_out)
        remarks |= dict.fromkeys(f"left out: {scale}: {name}: {omission}" for name, omission in left_out)
        runs = {run.id for study in search_result.studies for run in study.runs}
        studies = "1 study" if len(search_result.studies) == 1 else f"{len(search_result.studies)} studies"
        click.echo(f"{scale:5}  {studies}, {counted(len(runs), 'run')}{'  (chosen)' if is_chosen else ''}")
    remarks |= dict.fromkeys(f"never judged: {sentence}" for sentence in claims_of_mistyped_studies())
    for remark in remarks:
        click.echo(remark, err=True)
    raise_all(errors)


def listed(word: str) -> Iterator[str]:
    """The keys and measured columns with `word` in their names, each below the file or the choice that has it."""
    from scalestudy.spec.columns import MEASURED
    from scalestudy.spec.schema import Key, Section, key_reference

    columns = [Key(name, f"{each.label} {each.unit}".strip(), "", each.meaning) for name, each in MEASURED.items()]
    for section in (*key_reference(), Section("Measured columns, of figures, tables, claims and answers", "", columns)):
        keys = [key for key in section.keys if word in key.name]
        if keys:
            yield f"\n{section.title}".replace("`", "")
        for key in keys:
            takes = f"{key.takes}, default {key.default}" if key.default not in ("", "needed") else key.takes
            takes = f"{takes} needed" if key.default == "needed" else takes
            yield f"  {key.name}: {takes}".replace("`", "")
            yield f"      {key.meaning}" if key.meaning else "      a map; its keys follow"


TEMPLATE = Path(__file__).with_name("study.yaml")


@click.command(name="new")
@click.argument("name", required=False)
@click.option("--program", metavar="COMMAND", help="Your own training script; it is run for a few steps first.")
def new(name: str | None, program: str | None) -> None:
    """Write config/studies/NAME.yaml: a commented study that can be run as it is. No file is replaced.

    With --program the study is one of your own script, and NAME `my_` and the script's unless one is given.

    \b
    Example: scalestudy new batch_size
    Example: scalestudy new --program train.py
    """
    from scalestudy.program.draft import draft, words_of
    from scalestudy.spec.layout import STUDIES
    from scalestudy.spec.study_file import refuse_study_name

    name = name or (f"my_{words_of(program)[1].stem}" if program else "")
    file = STUDIES / f"{name}.yaml"
    refuse_study_name(name, "new")
    if file.exists():
        raise UserError("is there already, and is not replaced", str(file), "choose another name, or edit it")
    if program is not None:
        click.echo("The script runs for a few steps. Files that it writes itself are written.", err=True)
    text = TEMPLATE.read_text(encoding="utf-8") if program is None else draft(program)
    write_text(file, text.replace("NAME", name, 1))
    click.echo(f"{file}\n  scalestudy check\n  snakemake {name} --profile profiles/local -n")


@click.command(name="expand")
@of_study
def expand(machine: str, scale: str, study: str) -> None:
    """Expand a study at one scale: write study.json, with its runs, figures, tables and claims.

    Example: scalestudy expand --study gpu_scaling
    """
    from scalestudy.spec.study_json import expanded_study, study_file

    expanded_study(machine, scale, study)
    click.echo(study_file(machine, scale, study))
