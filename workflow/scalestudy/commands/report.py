"""`scalestudy report`: everything on one page."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.commands.options import MACHINE, OUT, SCALE


@click.command(name="report")
@MACHINE
@SCALE
@OUT
@click.option("--studies", required=True, help="Names, separated by commas.")
def command(machine: str, scale: str, out: Path, studies: str) -> None:
    """Write everything of some studies as one self-contained page.

    Example: scalestudy report --studies gpu_scaling --out report.html
    """
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.report.page import write_report
    from scalestudy.spec.study_json import expanded_study

    with beside_measured_runs():
        found = [expanded_study(machine, scale, name) for name in studies.split(",")]
        write_report(found, machine, scale, out)
