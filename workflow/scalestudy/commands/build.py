"""`scalestudy build`: what is compiled on the machine, which is Horovod."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.commands.options import FILE
from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.site_fault import SiteFault, in_job


@click.command(name="build")
@click.argument("what", type=click.Choice(["horovod"]))
@click.option("--out", default=None, type=FILE, help="File for the outcome.")
def command(what: str, out: Path | None) -> None:
    """Compile what has to be compiled on this machine, once: Horovod, in some minutes.

    With --out a failure is an outcome too, and the exit status is 0; but not in a job, where the site lacks a compiler or
    the network.

    Example: scalestudy build horovod
    """
    from scalestudy.host_lock import measured_run
    from scalestudy.strategies import horovod_build

    with measured_run("the build of Horovod"):
        result = horovod_build.build()
    if result["status"] == "failed" and in_job() and str(result["reason"]).startswith(horovod_build.OF_SITE):
        remedy = "on a host with internet: scalestudy fetch; a compiler: `modules` of the site"
        raise SiteFault(f"Horovod could not be built: {result['reason']}", remedy)
    if out is not None:
        write_json(out, result)
    elif result["status"] == "failed":
        raise UserError(f"Horovod could not be built: {result['reason']}", "build horovod")
    click.echo(f"{result['status']}: {result['reason'] or horovod_build.found()}")
