"""What is compiled on the machine: Horovod."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.locks import measured_run
from scalestudy.strategies import horovod_build


def build_horovod(out: Path | None) -> None:
    """Build Horovod once per toolchain. With `out`, what came of it is written there, and a failure is a result."""
    with measured_run():
        result = horovod_build.build()
    if out is not None:
        write_json(out, result)
    elif result["status"] == "failed":
        raise UserError(f"Horovod could not be built: {result['reason']}", "build horovod")
    click.echo(f"{result['status']}: {result['reason'] or horovod_build.found()}")
