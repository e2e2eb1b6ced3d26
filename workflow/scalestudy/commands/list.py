"""`scalestudy list`: the runs of studies, and which are done."""

from __future__ import annotations

import click

from scalestudy.commands.options import MACHINE, SCALE


@click.command(name="list")
@MACHINE
@SCALE
@click.option("--study", default=None, help="Only this study.")
def command(machine: str, scale: str, study: str | None) -> None:
    """List the runs of the studies and their status.

    Example: scalestudy list --study gpu_scaling
    """
    from scalestudy.results.stored import read_result
    from scalestudy.spec.config import read_machine
    from scalestudy.spec.read_study import read_studies

    for found in read_studies([study] if study else None, scale, read_machine(machine), machine_name=machine):
        click.echo(f"{found.name}: {found.question}")
        for run in found.runs:
            click.echo(f"  {(read_result(machine, run) or {'status': 'not run'})['status']:8} {run.id}")
