"""`scalestudy summarise`: the results of a study as one table."""

from __future__ import annotations

import click

from scalestudy.commands.options import MACHINE, SCALE, STUDY


@click.command(name="summarise")
@MACHINE
@SCALE
@STUDY
def command(machine: str, scale: str, study: str) -> None:
    """Gather a study's results into runs.parquet and summary.csv.

    Example: scalestudy summarise --study gpu_scaling
    """
    from scalestudy.analysis.summarise import summarise
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.spec.study_json import expanded_study

    with beside_measured_runs():
        summarise(expanded_study(machine, scale, study), machine)
