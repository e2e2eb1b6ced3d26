"""`scalestudy agent`: one node of a run on several, started by a launcher."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from scalestudy.commands.options import in_warm_parent


@click.command(name="agent", hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("index", type=int, required=False)
def command(folder: Path, index: int | None) -> None:
    """One node of a run on several; started by a launcher.

    Example: scalestudy agent FOLDER 1
    """
    in_warm_parent("agent", str(folder), *([] if index is None else [str(index)]))
    from scalestudy.launch.agent import main as be_agent

    sys.exit(be_agent(folder, index))
