"""`scalestudy results`: the runs that there are, as a list or as one table."""

from __future__ import annotations

from pathlib import Path

import click

from scalestudy.commands.options import FILE

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
def command(
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
