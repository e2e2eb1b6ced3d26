"""`scalestudy accept`: whether every node of a machine is as it should be."""

from __future__ import annotations

import sys

import click

from scalestudy.commands.options import MACHINE, SCALE, one_study


@click.command(name="accept")
@click.argument("study", default="acceptance")
@MACHINE
@SCALE
def command(study: str, machine: str, scale: str) -> None:
    """Compare the nodes of a machine with each other: which are slow, failed, or count memory errors?

    STUDY measures nodes by name (`vary: {nodes: each}`), and says by how much a node may be slower. Looks at what has been
    measured so far. Writes a page to print, a CSV table, and a list of nodes to drain, one per line. Exit status: 1 where a
    node, a pair or an agreed value is not as it should be, else 3 where that is not known yet, else 0.

    Example: scalestudy accept acceptance --machine my_cluster --scale paper
    """
    from scalestudy.analysis.fleet import fleet_of
    from scalestudy.analysis.summarise import study_rows
    from scalestudy.commands.claims import lines, verdicts_of
    from scalestudy.report.acceptance import headline, status_of, write_acceptance

    found = one_study(machine, scale, study)
    fleet = fleet_of(found, study_rows(found, machine).to_dict("records"))  # type: ignore[arg-type]
    claims = verdicts_of(found, machine)
    click.echo(headline(fleet, claims, machine))
    for host, reasons in fleet.drain().items():
        click.echo(f"  {host}: {'; '.join(reasons)}")
    for each in fleet.suspects():
        click.echo(f"  {each.unit.name}: slow or failed together, and neither of them is to be drained")
    for host, count in fleet.incomplete().items():
        click.echo(f"  {host}: {count} {'run' if count == 1 else 'runs'} without a result yet")
    for line in lines(claims):
        click.echo(f"  {line}")
    for file in write_acceptance(fleet, claims, machine):
        click.echo(f"  {file}")
    sys.exit(status_of(fleet, claims))
