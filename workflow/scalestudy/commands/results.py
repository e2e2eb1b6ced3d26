"""Verbs about results: their products, their list, and their deletion."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import FILE, MACHINE, OUT, SCALE, STUDY
from scalestudy.errors import UserError
from scalestudy.spec.layout import RESULTS, result_file, run_folder

if TYPE_CHECKING:
    from scalestudy.spec.study import Study


@contextmanager
def _beside_runs(machine: str, scale: str, *names: str) -> Iterator[list[Study]]:
    """The expanded studies; work on them waits until no measured run is on this host."""
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.spec.study_json import expanded_study

    with beside_measured_runs():
        yield [expanded_study(machine, scale, name) for name in names]


@click.command(name="summarise")
@MACHINE
@SCALE
@STUDY
def summarise(machine: str, scale: str, study: str) -> None:
    """Gather a study's results into runs.parquet and summary.csv.

    Example: scalestudy summarise --study gpu_scaling
    """
    from scalestudy.analysis.summarise import summarise

    with _beside_runs(machine, scale, study) as (found,):
        summarise(found, machine)


@click.command(name="figure")
@MACHINE
@SCALE
@STUDY
@click.option("--name", required=True, help="Name of the figure in the study.")
def figure(machine: str, scale: str, study: str, name: str) -> None:
    """Draw one figure of a study, as SVG, PDF and PNG.

    Example: scalestudy figure --study gpu_scaling --name time
    """
    from scalestudy.figures.kinds import draw

    with _beside_runs(machine, scale, study) as (found,):
        draw(found, machine, name)


@click.command(name="table")
@MACHINE
@SCALE
@STUDY
@click.option("--name", required=True, help="Name of the table in the study.")
def table(machine: str, scale: str, study: str, name: str) -> None:
    """Write one table of a study, as CSV, Markdown and LaTeX.

    Example: scalestudy table --study gpu_scaling --name times
    """
    from scalestudy.figures.tables import write_table

    with _beside_runs(machine, scale, study) as (found,):
        write_table(found, machine, name)


@click.command(name="report")
@MACHINE
@SCALE
@OUT
@click.option("--studies", required=True, help="Names, separated by commas.")
def report(machine: str, scale: str, out: Path, studies: str) -> None:
    """Write everything of some studies as one self-contained page.

    Example: scalestudy report --studies gpu_scaling --out report.html
    """
    from scalestudy.report.page import write_report

    with _beside_runs(machine, scale, *studies.split(",")) as found:
        write_report(found, machine, scale, out)


LISTED = ("status", "study", "run", "throughput_samples_per_s", "accuracy", "training_time_s")


@click.command(name="results")
@click.option(
    "--machine", "machines", multiple=True, help="Folder in results/, or a path; may be repeated. Default: all."
)
@click.option("--study", default=None, help="Only runs of this study.")
@click.option(
    "--where", "wheres", multiple=True, metavar="KEY=VALUE", help="Only runs with this value; may be repeated."
)
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(["valid", "invalid", "skipped"]), help="Only these."
)
@click.option("--columns", default="", metavar="NAME,NAME", help="Columns to show or write; default a few, or all.")
@click.option("--out", type=FILE, default=None, help="File to write instead of a list: .parquet, .csv or .json.")
def results(
    machines: tuple[str, ...],
    study: str | None,
    wheres: tuple[str, ...],
    statuses: tuple[str, ...],
    columns: str,
    out: Path | None,
) -> None:
    """List the runs that have a result, or write them as one tidy table: a row per run.

    A file has the unit and meaning of each column: Parquet and JSON inside, CSV in a second file next to it.

    \b
    Example: scalestudy results --study gpu_scaling --where ranks=2 --status valid
    Example: scalestudy results --out runs.parquet
    """
    from scalestudy.analysis.recorded import read_records
    from scalestudy.analysis.tidy import frame_of, selected, tidy_rows, write_table
    from scalestudy.commands.one_run import setting
    from scalestudy.errors import UserError
    from scalestudy.figures.configurations import configuration_names
    from scalestudy.spec.layout import RESULTS

    folders = machines or tuple(sorted(path.parent.name for path in RESULTS.glob("*/runs")))
    if not folders:
        raise UserError("there are no results here", str(RESULTS), "measure first: snakemake --profile profiles/local")
    rows = []
    for folder in folders:
        records = read_records(folder)
        names = configuration_names(records.name, study)
        rows += [
            row
            for row in tidy_rows([records], {key: (name.study, name.scale) for key, name in names.items()})
            if study is None or row["study"]
        ]
        for run, reason in records.unreadable:
            click.echo(f"notice: {records.name}: {run}: {reason}", err=True)
    found = selected(rows, dict(setting(where, "results") for where in wheres), statuses)
    asked = [name.strip() for name in columns.split(",") if name.strip()]
    if not found:
        raise UserError(
            f"none of {len(rows)} runs matches", "results", "ask for more: loosen --study, --where or --status"
        )
    if out is not None:
        frame = frame_of(found, asked)
        for file in write_table(frame, out):
            click.echo(f"{file}")
        click.echo(f"{len(frame)} runs, {len(frame.columns)} columns")
        return
    frame = frame_of(found, asked or LISTED)
    click.echo(frame.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.5g}"))
    click.echo(f"{len(found)} of {len(rows)} runs")


@click.command(name="forget")
@click.argument("runs", nargs=-1)
@MACHINE
@click.option("--skipped", is_flag=True, help="All skipped runs, once what was missing is there.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def forget(runs: tuple[str, ...], machine: str, skipped: bool, yes: bool) -> None:
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
    """The remedy for an unknown name of a run; a machine can have thousands."""
    near = difflib.get_close_matches(run, known, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else f"{len(known)} runs are there: `scalestudy results` shows them"
