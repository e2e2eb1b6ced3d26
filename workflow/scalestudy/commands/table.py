"""`scalestudy table`: one table of a study."""

from __future__ import annotations

import click

from scalestudy.commands.options import MACHINE, SCALE, STUDY


@click.command(name="table")
@MACHINE
@SCALE
@STUDY
@click.option("--name", required=True, help="Name of the table in the study.")
def command(machine: str, scale: str, study: str, name: str) -> None:
    """Write one table of a study, as CSV, Markdown and LaTeX.

    Example: scalestudy table --study gpu_scaling --name times
    """
    from scalestudy.figures.tables import write_table
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.spec.study_json import expanded_study

    with beside_measured_runs():
        found = expanded_study(machine, scale, study)
        write_table(found, machine, name)
