"""`scalestudy explain -- COMMAND` or `RUN`: why a training is slow, proven by taking parts of its step away."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import click

from scalestudy.commands.options import MACHINE
from scalestudy.errors import UserError
from scalestudy.files import read_json
from scalestudy.results.parts import step_in_words
from scalestudy.spec.layout import result_file


@click.command(name="explain", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Most optimiser steps that are timed in a run.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Time for all runs; at least three rounds are made.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--keep",
    type=click.Path(resolve_path=True, path_type=Path),
    help="Keep each run's records and output in this folder.",
)
@MACHINE
@click.argument("command_line", nargs=-1, required=True, type=click.UNPROCESSED)
def explain(
    steps: int,
    minutes: float,
    as_json: bool,
    keep: Path | None,
    machine: str,
    command_line: tuple[str, ...],
) -> None:
    """Run a training script a few times, each time with one part of its step taken away, and say where its time goes.

    COMMAND is the script as you start it, for example `torchrun --nproc-per-node 8 train.py --my-flags`. It is not edited.
    In its place, the id of a finished run of the project prints the parts that the run has measured itself.

    \b
    Example: scalestudy explain -- python train.py
    Example: scalestudy explain resnet18.synthetic.allreduce.x2.r0-0123456789ab
    """
    from scalestudy.program import explanation
    from scalestudy.program.takeaway import take_away

    scratch = click.get_current_context().with_resource(tempfile.TemporaryDirectory(prefix="scalestudy_"))
    file = result_file(machine, command_line[0])
    if len(command_line) == 1 and file.is_file():
        result = read_json(file)
        if result["status"] == "skipped":
            raise UserError(f"was skipped: {result['reason']}", command_line[0], "explain a run that was made")
        if result["spec"].get("program") and "explained" not in result:
            remedy = (
                "set `explain: true` in its study, or give the command as you start it: scalestudy explain -- COMMAND"
            )
            raise UserError("is a run of a program of your own", command_line[0], remedy)
        parts = result.get("explained") or step_in_words(result)
        lines = [*parts["sentences"], *parts.get("unseen", ())]
        click.echo(json.dumps(parts, indent=2) if as_json else "\n".join(lines))
        return
    if len(command_line) == 1 and shutil.which(command_line[0]) is None:
        what = f"is neither a command nor a run with a result on `{machine}`"
        raise UserError(what, command_line[0], "the report lists the runs; a script is started by `python`")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UserError("the folder is not empty", str(keep), "name a new one for --keep")
    notice = "The script runs several times, a few steps each. Files that it writes itself are written each time."
    click.echo(notice, err=True)
    folder = keep or Path(scratch) / "runs"
    seen = take_away(command_line, folder, steps, 60 * minutes, lambda text: click.echo(f"  {text}", err=True))
    if failure := seen.calibration.failure:
        raise UserError(failure, " ".join(command_line), "see that the command trains by itself first")
    result = explanation.explain(seen)
    if as_json:
        click.echo(json.dumps(explanation.as_json(result), indent=2))
        return
    click.echo("\n".join([*explanation.sentences(result), *explanation.unseen(result)]))
