"""`scalestudy explain -- COMMAND`: why a training script is slow, proven by taking parts of its step away."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from scalestudy.errors import UserError

PARTS = ("loading", "exchange", "copies", "workers", "pinned")


@click.command(name="explain", context_settings={"ignore_unknown_options": True})
@click.option("--steps", default=200, show_default=True, help="Most optimiser steps that are timed in a run.")
@click.option("--minutes", default=2.0, show_default=True, help="Time for all runs; at least three rounds are made.")
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="Take away this part alone; can be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep each run's records and output in this folder.")
@click.argument("command_line", nargs=-1, required=True, type=click.UNPROCESSED)
def explain(
    steps: int, minutes: float, only: tuple[str, ...], as_json: bool, keep: Path | None, command_line: tuple[str, ...]
) -> None:
    """Run a training script a few times, each time with one part of its step taken away, and say where its time goes.

    COMMAND is the script as you start it, for example `torchrun --nproc-per-node 8 train.py --my-flags`. It is not edited.

    Example: scalestudy explain -- python train.py
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UserError("the folder is not empty", str(keep), "name a new one for --keep")
    click.echo(
        "The script runs several times, a few steps each. Files that it writes itself are written each time.", err=True
    )
    if keep is not None:
        _explain(keep, steps, minutes, only, as_json, command_line)
        return
    with tempfile.TemporaryDirectory(prefix="scalestudy_") as folder:
        _explain(Path(folder) / "runs", steps, minutes, only, as_json, command_line)


def _explain(
    folder: Path, steps: int, minutes: float, only: tuple[str, ...], print_json: bool, command_line: tuple[str, ...]
) -> None:
    from scalestudy.analysis.explanation import as_json, bar, explain, sentences, unseen
    from scalestudy.program.takeaway import take_away

    observed = take_away(
        command_line, folder, steps, 60 * minutes, only, lambda text: click.echo(f"  {text}", err=True)
    )
    if observed.calibration.failure:
        raise UserError(
            observed.calibration.failure, " ".join(command_line), "see that the command trains by itself first"
        )
    result = explain(observed)
    if print_json:
        click.echo(json.dumps(as_json(result), indent=2))
        return
    click.echo("\n".join([*sentences(result), "", bar(result), "", *unseen(result)]))
