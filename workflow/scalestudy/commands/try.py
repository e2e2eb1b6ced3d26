"""`scalestudy try`: one run outside the DAG."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.commands.options import in_warm_parent


@click.command(name="try")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the run's files.")
@click.option(
    "--from",
    "init_from",
    default=None,
    type=click.Path(path_type=Path),
    help="A checkpoint to start from: a folder `step-…` below `checkpoint/` of a run that stopped.",
)
def command(settings: tuple[str, ...], out: Path, init_from: Path | None) -> None:
    """Make one run outside the DAG, with defaults for all other keys, and print its metrics.

    A run that stopped on purpose (exit status 75) or was killed resumes when the same command is run again. With
    --from, a run continues from another one's checkpoint, on another number of ranks or with another exchange.

    \b
    Example: scalestudy try strategy=allreduce ranks=2 train.epochs=5 --out /tmp/a
    Example: scalestudy try model=resnet50 device=emulated:p100 data.source=synthetic measure.steps=20 --out /tmp/b
    """
    start = ["--from", str(init_from)] if init_from else []
    in_warm_parent("try", *settings, "--out", str(out), *start)
    from scalestudy.commands.one_run import try_settings

    try_settings(settings, out, init_from)
