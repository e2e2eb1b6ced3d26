"""Summary at the end: files, answers, verdicts, omissions with reasons."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import MACHINE, SCALE, studies_of
from scalestudy.errors import visible
from scalestudy.spec.layout import figure_file, report_file, run_folder, table_file

if TYPE_CHECKING:
    from scalestudy.figures.catalogue import TableSpec
    from scalestudy.spec.study import Study

UNTOLD = ("finished", "its command failed")
"""Ends of jobs that say nothing about the cause of a missing result."""
MOST_OF_A_LINE = 200
"""Characters of a log's line that a summary shows."""
MAX_REFUTED = 3
"""Claims named that do not hold here."""


@click.command(name="summary")
@MACHINE
@SCALE
@click.option("--studies", default="all", help="Names, separated by commas, or all.")
@click.option("--since", type=float, default=None, help="Start of the work, seconds since 1970.")
def summary(machine: str, scale: str, studies: str, since: float | None) -> None:
    """Answer the studies' questions, count the verdicts, and list omissions with reasons.

    Example: scalestudy summary
    """
    print_summary(machine, scale, None if studies == "all" else studies.split(","), since)


def print_summary(machine: str, scale: str, names: list[str] | None, since: float | None) -> None:
    """Print a short account of the studies' results: files first, so that the answers stand where the terminal ends."""
    from scalestudy.spec.study import left_out_of

    studies = studies_of(machine, scale, names)
    left_out: Counter[str] = Counter()
    for study in studies:
        left_out += _print_study(study, machine, scale)
    _print_devices(studies, machine)
    _print_answers(studies, machine)
    _print_verdicts(studies, machine)
    beyond = left_out_of(studies)
    if left_out or beyond:
        click.echo("\nLeft out:")
        for sentence in beyond:
            click.echo(f"  {sentence}")
        for reason, count in left_out.items():
            click.echo(f"  {count} × {reason}")
    click.echo("")
    if holds(report_file(machine, scale), studies):
        _line("report", report_file(machine, scale), *studies, machine=machine)
    if since is not None:
        click.echo(f"  took    {time.time() - since:,.0f} s")


def _print_answers(studies: list[Study], machine: str) -> None:
    """The answers to the studies' questions; of many studies, those of the first."""
    from scalestudy.report.answers import first_answers, this_machine

    click.echo(f"\n{this_machine(studies, machine)}")
    shown, left_out = first_answers(studies, machine)
    for title, sentence in shown:
        click.echo(wrapped(f"{title}: {sentence}"))
    for said in left_out:
        click.echo(wrapped(f"Not answered: {said}"))


def wrapped(text: str) -> str:
    """A sentence over lines of the terminal's width, indented."""
    width = min(shutil.get_terminal_size().columns, 120)
    return textwrap.fill(text, width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _print_verdicts(studies: list[Study], machine: str) -> None:
    """How many claims there are, on which basis their verdicts stand, and each that does not hold here."""
    from scalestudy.commands.claims import denominator, lines, verdicts_of

    verdicts = [verdict for study in studies for verdict in verdicts_of(study, machine)]
    if not verdicts:
        return
    click.echo("")
    for line in denominator(verdicts):
        click.echo(line)
    refuted = [verdict for verdict in verdicts if verdict["verdict"] == "not reproduced"]
    for line in lines(refuted[:MAX_REFUTED]):
        click.echo(f"  {line}")
    click.echo("  each, with its reason: scalestudy claims")


def _print_devices(studies: list[Study], machine: str) -> None:
    """Findings about the accelerators of this machine."""
    from scalestudy.analysis.on_devices import about_devices
    from scalestudy.results.stored import read_result

    made = [(run.spec, found) for study in studies for run in study.runs if (found := read_result(machine, run))]
    lines = about_devices(made)
    if lines:
        click.echo("\nFound about the accelerators:")
        for line in lines:
            click.echo(f"  {line}")


def _print_study(study: Study, machine: str, scale: str) -> Counter[str]:
    """The study's runs, figures, tables and decisions; returns how often each reason left a run out."""
    from scalestudy.analysis.summarise import is_current
    from scalestudy.cluster.ledger import read_ledger
    from scalestudy.results.stored import read_result

    causes = {attempt.run: attempt.cause for attempt in read_ledger() if attempt.cause is not None}
    left_out: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for run in study.runs:
        result = read_result(machine, run)
        status = "without a result" if result is None else result["status"]
        states[status] += 1
        if result is None:
            left_out[f"{study.name}: {why_missing(run_folder(machine, run.id), causes.get(run.id, ''))}"] += 1
        elif status != "valid":
            left_out[f"{study.name}: {status}: {result['reason']}"] += 1
    counts = ", ".join(f"{count} {status}" for status, count in states.items())
    files = [figure_file(machine, scale, study.name, figure.file_name) for figure in study.figures]
    files += [table_file(machine, scale, study.name, table.name, "md") for table in study.tables]
    drawn = [file for file in files if file.exists()]
    click.echo(f"{study.title}: {counts} of {len(study.runs)} runs; {len(drawn)} of {len(files)} figures and tables")
    for file in files:
        if file not in drawn or not is_current(study, machine, file):
            _line("", file, study, machine=machine)
    for table in study.tables:
        file = table_file(machine, scale, study.name, table.name, "md")
        if table.decide and file.exists() and is_current(study, machine, file):
            for sentence in _decided(study, machine, table):
                click.echo(f"  {sentence}")
    return left_out


def why_missing(folder: Path, of_job: str = "") -> str:
    """Why a run has no result: its own message at its stop, else why its job ended where the executor knows that, else the
    last line of its log, else that it was not run.
    """
    from scalestudy.files import tail
    from scalestudy.results.stored import state_of

    log = folder / "log" / "train.log"
    found = state_of(folder)
    cause = found.get("cause", "") if found.get("state") in ("failed", "checkpointed") else ""
    if found.get("state") == "checkpointed":
        return f"stopped at a checkpoint: {cause}" if cause else "stopped at a checkpoint"
    lines = [visible(line).strip() for line in tail(log).splitlines()]
    cause = cause or ("" if of_job in UNTOLD else of_job) or next((line for line in reversed(lines) if line), "")
    if not cause:
        return f"no result; its log is empty: {log}" if log.exists() else "not run"
    shortened = cause if len(cause) <= MOST_OF_A_LINE else cause[: MOST_OF_A_LINE - 1] + "…"
    return f"no result: {shortened} (log: {log})" if log.exists() else f"no result: {shortened}"


def holds(report: Path, studies: Iterable[Study]) -> bool:
    """Whether the report shows all these studies: an earlier call may have made it of others."""
    try:
        page = report.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return all(f'<h2 id="{study.name}">' in page for study in studies)


def _decided(study: Study, machine: str, table: TableSpec) -> list[str]:
    from scalestudy.analysis.summarise import read_rows
    from scalestudy.figures.decision import sentences
    from scalestudy.figures.groups import selected

    assert table.decide is not None
    return sentences(
        study, selected(read_rows(study, machine), table.where), table.decide, table.values[0], table.margin
    )


def _line(kind: str, file: Path, *studies: Study, machine: str) -> None:
    from scalestudy.analysis.summarise import is_current

    is_old = file.exists() and not all(is_current(study, machine, file) for study in studies)
    click.echo(
        f"  {kind:7} {file}" + ("  (older than its runs)" if is_old else "" if file.exists() else "  (not made)")
    )
