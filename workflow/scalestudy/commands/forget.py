"""`scalestudy forget`: delete results, so that their runs are made again."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Sequence

import click

from scalestudy.commands.options import MACHINE
from scalestudy.errors import UserError
from scalestudy.spec.layout import RESULTS, result_file, run_folder


@click.command(name="forget")
@click.argument("runs", nargs=-1)
@MACHINE
@click.option("--skipped", is_flag=True, help="All skipped runs, once what was missing is there.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(runs: tuple[str, ...], machine: str, skipped: bool, yes: bool) -> None:
    """Delete the results of runs, so that they are run again. history.jsonl keeps the time that they took.

    Example: scalestudy forget small_cnn.digits.allreduce.x2.r0-0123456789ab
    """
    forget_runs(list(runs), machine, skipped, yes)


def forget_runs(runs: list[str], machine: str, skipped: bool, yes: bool) -> None:
    """Delete the folders of `runs` (and of all skipped ones) after asking; history.jsonl stays.

    With skipped runs, the manifests of data that was not available are deleted too, so that it is looked for again.
    """
    from scalestudy.data.manifest import is_skipped
    from scalestudy.launch.trainer_lock import trainer_of
    from scalestudy.results.stored import status_of

    folder = RESULTS / machine / "runs"
    # A link in the place of a run would have files elsewhere deleted.
    known = sorted(path.name for path in folder.glob("*") if path.is_dir() and not path.is_symlink())
    for run in runs:
        if run not in known:
            raise UserError(f"there is no run `{run}`", str(folder), _nearest(run, known))
    if skipped:
        runs += [run for run in known if status_of(machine, run) == "skipped"]
    runs = list(dict.fromkeys(runs))
    if not runs:
        click.echo("nothing to forget")
        return
    for run in runs:
        if trainer := trainer_of(run_folder(machine, run)):
            what = f"is being made now, by {trainer}: nothing is deleted"
            raise UserError(what, str(run_folder(machine, run)), "wait for its end, or end that process first")
    for run in runs:
        click.echo(f"{status_of(machine, run):9} {run}")
    if not yes and not click.confirm(f"Delete these {len(runs)} runs?", default=False, err=True):
        raise click.exceptions.Abort
    if any(status_of(machine, run) == "skipped" for run in runs):
        for manifest in (RESULTS / "data").glob("*/manifest.json"):
            if is_skipped(manifest):
                manifest.unlink()
    for run in runs:
        # The result goes first: what is left of a deletion that is interrupted is no result.
        result_file(machine, run).unlink(missing_ok=True)
        shutil.rmtree(run_folder(machine, run))


def _nearest(run: str, known: Sequence[str]) -> str:
    """What to do about the name of a run that is not there; a machine can have thousands."""
    near = difflib.get_close_matches(run, known, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else f"{len(known)} runs are there: `scalestudy results` shows them"
