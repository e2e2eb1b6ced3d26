"""`scalestudy build`: what is compiled on the machine, which is Horovod."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.commands.options import FILE
from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.site_fault import SiteFault, lacking


@click.command(name="build")
@click.argument("what", type=click.Choice(["horovod"]))
@click.option("--out", default=None, type=FILE, help="File for the outcome.")
def command(what: str, out: Path | None) -> None:
    """Compile what has to be compiled on this machine, once: Horovod, in some minutes.

    With --out a failure is an outcome too, and the exit status is 0; but not in a job whose node lacks the network, or a
    compiler that the site is said to have.

    Example: scalestudy build horovod
    """
    from scalestudy.host_lock import measured_run
    from scalestudy.strategies import horovod_build

    with measured_run("the build of Horovod"):
        result = horovod_build.build()
    if result["status"] == "failed" and (fault := _site_fault(str(result["reason"]))):
        raise fault
    if out is not None:
        write_json(out, result)
    elif result["status"] == "failed":
        raise UserError(f"Horovod could not be built: {result['reason']}", "build horovod")
    click.echo(f"{result['status']}: {result['reason'] or horovod_build.found()}")


def _site_fault(reason: str) -> SiteFault | None:
    """What another node or another day can remedy; None where the build itself went wrong."""
    from scalestudy.spec.config import read_site
    from scalestudy.strategies import horovod_build

    what = f"Horovod could not be built: {reason}"
    if reason.startswith(horovod_build.NO_COMPILER):
        error = lacking(what, "c++", read_site().lacks)
    elif reason.startswith(horovod_build.OF_NETWORK):
        error = lacking(f"{what}; `scalestudy fetch` on a host with internet brings what it needs")
    else:
        return None
    return error if isinstance(error, SiteFault) else None
