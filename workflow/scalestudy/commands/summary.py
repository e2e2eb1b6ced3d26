"""`scalestudy summary`: figures, tables and report that there are, what is left out and why."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import MACHINE, SCALE
from scalestudy.files import read_json
from scalestudy.spec.layout import figure_file, report_file, run_folder, table_file

if TYPE_CHECKING:
    from scalestudy.figures.catalogue import TableSpec
    from scalestudy.spec.study import Study


@click.command(name="summary")
@MACHINE
@SCALE
@click.option("--studies", default="all", help="Names, separated by commas, or all.")
@click.option("--since", type=float, default=None, help="When the work began, seconds since 1970.")
def command(machine: str, scale: str, studies: str, since: float | None) -> None:
    """Say what there is: figures, tables, report, what is left out and why.

    Example: scalestudy summary
    """
    print_summary(machine, scale, None if studies == "all" else studies.split(","), since)


def print_summary(machine: str, scale: str, names: list[str] | None, since: float | None) -> None:
    """Print a short overview of the studies' results."""
    from scalestudy.results.stored import read_result
    from scalestudy.spec.config import read_machine
    from scalestudy.spec.read_study import read_studies

    studies = read_studies(names, scale, read_machine(machine), machine_name=machine)
    left_out: Counter[str] = Counter()
    for study in studies:
        states: Counter[str] = Counter()
        for run in study.runs:
            result = read_result(machine, run)
            status = "without a result" if result is None else result["status"]
            states[status] += 1
            if result is None:
                left_out[f"{study.name}: {_why_no_result(run_folder(machine, run.id))}"] += 1
            elif status != "valid":
                left_out[f"{study.name}: {status}: {result['reason']}"] += 1
        click.echo(
            f"\n{study.title}: {', '.join(f'{count} {status}' for status, count in states.items())} of {len(study.runs)} runs"
        )
        for figure in study.figures:
            _line("figure", figure_file(machine, scale, study.name, figure.file_name))
        for table in study.tables:
            _line("table", table_file(machine, scale, study.name, table.name, "md"))
            if table.decide and table_file(machine, scale, study.name, table.name, "md").exists():
                for sentence in _decided(study, machine, table):
                    click.echo(f"          {sentence}")
    if left_out:
        click.echo("\nLeft out:")
        for reason, count in left_out.items():
            click.echo(f"  {count} × {reason}")
    click.echo("")
    _line("report", report_file(machine, scale))
    if since is not None:
        click.echo(f"  took    {time.time() - since:,.0f} s")


def _decided(study: Study, machine: str, table: TableSpec) -> list[str]:
    from scalestudy.analysis.summarise import read_rows
    from scalestudy.figures.build import selected
    from scalestudy.figures.decision import sentences

    assert table.decide is not None
    return sentences(study, selected(read_rows(study, machine), table.where), table.decide, table.values[0])


def _why_no_result(folder: Path) -> str:
    """What is known of a run without a result: the cause that it wrote, and its log where that has a line."""
    log, state = folder / "log" / "train.log", folder / "state.json"
    said = f"; see {log}" if log.exists() and log.stat().st_size else ""
    cause = read_json(state).get("cause") if state.exists() else None
    if not said and not cause:
        return "no result; its job wrote nothing" if log.exists() else "not run"
    return f"no result{said}" + (f": {cause}" if cause else "")


def _line(kind: str, file: object) -> None:
    click.echo(f"  {kind:7} {file}" + ("" if Path(str(file)).exists() else "  (not made)"))
