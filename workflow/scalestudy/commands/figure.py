"""`scalestudy figure`: one figure of a study."""

from __future__ import annotations

import click

from scalestudy.commands.options import MACHINE, SCALE, STUDY


@click.command(name="figure")
@MACHINE
@SCALE
@STUDY
@click.option("--name", required=True, help="Name of the figure in the study.")
def command(machine: str, scale: str, study: str, name: str) -> None:
    """Draw one figure of a study, as SVG, PDF and PNG.

    Example: scalestudy figure --study gpu_scaling --name time
    """
    from scalestudy.figures.kinds import draw
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.spec.study_json import expanded_study

    with beside_measured_runs():
        found = expanded_study(machine, scale, study)
        draw(found, machine, name)
