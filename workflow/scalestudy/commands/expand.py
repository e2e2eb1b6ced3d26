"""`scalestudy expand`: a study at one scale, as everything after its runs reads it."""

from __future__ import annotations

import click

from scalestudy.commands.options import MACHINE, SCALE, STUDY


@click.command(name="expand")
@MACHINE
@SCALE
@STUDY
def command(machine: str, scale: str, study: str) -> None:
    """Expand a study at one scale: write study.json, with its runs, figures, tables and claims.

    Example: scalestudy expand --study gpu_scaling
    """
    from scalestudy.spec.study_json import expanded_study, study_file

    expanded_study(machine, scale, study)
    click.echo(study_file(machine, scale, study))
