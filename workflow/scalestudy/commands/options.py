"""Options that several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from scalestudy.spec.study import Study


FILE = click.Path(path_type=Path)


def _named(context: click.Context, option: click.Parameter, value: str) -> str:
    """The machine that `auto` is; every other name as it is."""
    name, between, campaign = value.partition("+")
    if name != "auto":
        return value
    from scalestudy.spec.auto_machine import auto_machine

    return f"{auto_machine()}{between}{campaign}"


MACHINE = click.option(
    "--machine",
    default="local",
    show_default=True,
    callback=_named,
    help="Name of a file in config/machines/, or auto; MACHINE+CAMPAIGN for the runs of a campaign.",
)
SCALE = click.option("--scale", type=click.Choice(["mini", "node", "paper"]), default="mini", show_default=True)
STUDY = click.option("--study", required=True, help="Name of a file in config/studies/.")
OUT = click.option("--out", required=True, type=FILE, help="File to write, whole or not at all.")
PROFILE = click.option("--profile", default="profiles/local", show_default=True, help="Profile to use.")
CONFIG = click.option(
    "--config", "config", multiple=True, metavar="KEY=VALUE", help="As Snakemake's --config; may be repeated."
)


def of_study(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that name one expanded study."""
    return MACHINE(SCALE(STUDY(verb)))


def studies_of(machine: str, scale: str, names: Sequence[str] | None) -> list[Study]:
    """Studies as study.json has them; those with a file that has changed since are expanded again."""
    from scalestudy.spec.study_json import stored_study

    stored = [stored_study(machine, scale, name) for name in names or ()]
    if stored and None not in stored:
        return [study for study in stored if study is not None]
    from scalestudy.spec.config import changes_of_call, read_machine
    from scalestudy.spec.read_study import read_studies

    return read_studies(names, scale, read_machine(machine), machine_name=machine, changes=changes_of_call())


def in_warm_server(*arguments: str) -> None:
    """End with the exit status of this command in a child of the warm server; return where it has to be done here."""
    from scalestudy.launch import warm

    if warm.is_wanted() and (status := warm.call(list(arguments))) is not None:
        sys.exit(status)
