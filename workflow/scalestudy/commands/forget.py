"""Delete results on purpose."""

from __future__ import annotations

import shutil

import click

from scalestudy.errors import UserError, nearest
from scalestudy.files import read_json
from scalestudy.results.stored import status_of
from scalestudy.spec.layout import RESULTS, result_file, run_folder


def forget_runs(runs: list[str], machine: str, skipped: bool, yes: bool) -> None:
    """Delete the folders of `runs` (and of all skipped ones) after asking; history.jsonl stays.

    With skipped runs go the manifests of data that could not be had, so that it is looked for again.
    """
    folder = RESULTS / machine / "runs"
    known = sorted(path.name for path in folder.glob("*") if path.is_dir())
    for run in runs:
        if run not in known:
            raise UserError(f"there is no run `{run}`", str(folder), nearest(run, known) if known else "")
    if skipped:
        runs += [run for run in known if status_of(machine, run) == "skipped"]
    runs = list(dict.fromkeys(runs))
    if not runs:
        click.echo("nothing to forget")
        return
    for run in runs:
        click.echo(f"{status_of(machine, run):9} {run}")
    if not yes and not click.confirm(f"Delete these {len(runs)} runs?", default=False, err=True):
        raise click.exceptions.Abort
    if any(status_of(machine, run) == "skipped" for run in runs):
        for manifest in (RESULTS / "data").glob("*/manifest.json"):
            if read_json(manifest).get("status") == "skipped":
                manifest.unlink()
    for run in runs:
        # The result goes first: what is left of a deletion that is interrupted is no result.
        result_file(machine, run).unlink(missing_ok=True)
        shutil.rmtree(run_folder(machine, run))
