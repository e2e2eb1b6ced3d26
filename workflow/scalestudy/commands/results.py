"""Verbs about results: their products, their deletion, claims, comparisons, and the account at the end."""

from __future__ import annotations

import difflib
import math
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalestudy.commands.options import FILE, MACHINE, OUT, SCALE, of_study, studies_of
from scalestudy.errors import UserError, nearest, visible
from scalestudy.files import json_lines, tail
from scalestudy.spec.layout import (
    RESULTS,
    comparison_file,
    figure_file,
    other_campaigns,
    report_file,
    result_file,
    run_folder,
    table_file,
)

if TYPE_CHECKING:
    import pandas as pd

    from scalestudy.claims.outcome import Verdict
    from scalestudy.claims.select import Row
    from scalestudy.spec.study import Study


@contextmanager
def _beside_runs(machine: str, scale: str, *names: str) -> Iterator[list[Study]]:
    """The expanded studies; work on them waits until no measured run is on this host.

    Import what the work needs within the block: pandas and matplotlib take a core for seconds.
    """
    from scalestudy.host_lock import beside_measured_runs
    from scalestudy.spec.study_json import expanded_study

    with beside_measured_runs():
        yield [expanded_study(machine, scale, name) for name in names]


@click.command(name="summarise")
@of_study
def summarise(machine: str, scale: str, study: str) -> None:
    """Gather a study's results into runs.parquet and summary.csv.

    Example: scalestudy summarise --study gpu_scaling
    """
    with _beside_runs(machine, scale, study) as (chosen_study,):
        from scalestudy.analysis.summarise import summarise

        summarise(chosen_study, machine)


@click.command(name="figure")
@of_study
@click.option("--name", required=True, help="Name of the figure in the study.")
def figure(machine: str, scale: str, study: str, name: str) -> None:
    """Draw one figure of a study, as SVG, PDF and PNG.

    Example: scalestudy figure --study gpu_scaling --name time
    """
    with _beside_runs(machine, scale, study) as (chosen_study,):
        from scalestudy.figures.kinds import draw

        draw(chosen_study, machine, name)


@click.command(name="table")
@of_study
@click.option("--name", required=True, help="Name of the table in the study.")
def table(machine: str, scale: str, study: str, name: str) -> None:
    """Write one table of a study, as CSV, Markdown and LaTeX.

    Example: scalestudy table --study gpu_scaling --name times
    """
    with _beside_runs(machine, scale, study) as (chosen_study,):
        from scalestudy.figures.tables import write_table

        write_table(chosen_study, machine, name)


@click.command(name="report")
@MACHINE
@SCALE
@OUT
@click.option("--studies", required=True, help="Names, separated by commas.")
def report(machine: str, scale: str, out: Path, studies: str) -> None:
    """Write everything of some studies as one self-contained page.

    Example: scalestudy report --studies gpu_scaling --out report.html
    """
    with _beside_runs(machine, scale, *studies.split(",")) as chosen_studies:
        from scalestudy.report.page import write_report

        write_report(chosen_studies, machine, scale, out)


@click.command(name="judge")
@of_study
def judge(machine: str, scale: str, study: str) -> None:
    """Judge the claims of one study by its runs; write JSON, CSV, Markdown and LaTeX.

    Example: scalestudy judge --study gpu_scaling
    """
    with _beside_runs(machine, scale, study) as (chosen_study,):
        from scalestudy.analysis.rows import read_rows
        from scalestudy.report.verdicts import write_verdicts

        write_verdicts(chosen_study, machine, _judged(chosen_study, machine, read_rows(chosen_study, machine)))


@click.command(name="claims")
@MACHINE
@SCALE
@click.option("--study", default=None, help="Name of a file in config/studies/; unset: all.")
@click.argument("name", required=False)
def claims(machine: str, scale: str, study: str | None, name: str | None) -> None:
    """Print each study's answer, the verdict on each claim with its number, and how many could be judged here.

    With the NAME of a claim, print its runs round by round: their numbers, what they are compared by, and their folders.

    \b
    Example: scalestudy claims --study gpu_scaling
    Example: scalestudy claims ring_is_slower
    """
    from scalestudy.report.answers import answer_of

    studies = studies_of(machine, scale, None if study is None else [study])
    if name is not None:
        claim_names = {claim.id for each in studies for claim in each.claims}
        if name not in claim_names:
            raise UserError(f"there is no claim `{name}` at scale `{scale}`", "", nearest(name, claim_names))
        for each in studies:  # a claim's name is unique in its study
            if any(claim.id == name for claim in each.claims):
                click.echo("\n".join(_in_full(each, name, machine)))
        return
    judgements = {each.name: verdicts_of(each, machine) for each in studies}
    for each in studies:
        if judgements[each.name]:
            answers = [f"→ {sentence}" for sentence in answer_of(each, machine).sentences]
            click.echo("\n  ".join([f"\n{each.name}: {each.question}", *answers, *claim_lines(judgements[each.name])]))
    verdicts = [verdict for of_study in judgements.values() for verdict in of_study]
    places = dict.fromkeys(place for each in verdicts for place in each.measured_on)
    measured_on = [f"Measured on {'; '.join(places)}."] if places else []
    click.echo("\n".join(["", *denominator(verdicts), *measured_on]))


def verdicts_of(study: Study, machine: str) -> list[Verdict]:
    """The verdicts on a study's claims, by the results that are there now."""
    from scalestudy.analysis.summarise import study_rows

    return _judged(study, machine, study_rows(study, machine)) if study.claims else []


def _judged(study: Study, machine: str, rows: pd.DataFrame) -> list[Verdict]:
    from scalestudy.analysis.summarise import study_rows
    from scalestudy.claims.fixed import fixed_claims
    from scalestudy.claims.judge import judge
    from scalestudy.figures.groups import selected

    others = [selected(study_rows(study, name), {}) for name in other_campaigns(machine)]
    return judge(study, selected(rows, {}), fixed_claims(study, machine), others)


def _in_full(study: Study, name: str, machine: str) -> Iterator[str]:
    """A claim with its verdict, and each round's values: `of / against = ratio`, then the runs that they are of."""
    from scalestudy.analysis.summarise import study_rows
    from scalestudy.claims.model import Exact, Published
    from scalestudy.claims.select import number_of, parts_of, published_rows, rows_of_claim
    from scalestudy.claims.words import compared_text, plain
    from scalestudy.figures.groups import selected

    claim = next(claim for claim in study.claims if claim.id == name)
    verdict = next(verdict for verdict in verdicts_of(study, machine) if verdict.id == name)
    yield from (f"{study.name}: {claim.statement}", f"  {verdict.cited or claim.origin}", f"  {verdict.sentence}")
    if isinstance(claim, Published):
        for row in published_rows(claim):
            yield f"  {row['reference']}: {row.get('label') or ''}: {claim.column} {plain(row[claim.column])}"
        return
    rows = selected(study_rows(study, machine), {})
    if isinstance(claim, Exact):
        for row in rows_of_claim(claim, rows):
            values = ", ".join(f"{check.column} {row.get(check.column)}" for check in claim.checks)
            yield f"  round {row['repeat'] + 1}: {values}  {run_folder(machine, row['run'])}"
        return
    is_share = claim.compared_as == "share"
    signs = {"ratio": "/", "difference": "-"}
    per = None if is_share else claim.per

    def text(row: Row) -> str:
        value = number_of(row, claim.column, per)
        of = f" of {plain(row[claim.per])}" if is_share and claim.per else ""
        return "no result" if value is None else f"{plain(value)}{of}"

    for part in parts_of(claim, rows):
        yield f"  {compared_text(study, claim, part.value)}"
        for number in sorted({row["repeat"] for row in part.rows}):
            sides = [[row for row in side if row["repeat"] == number] for side in part.sides]
            numbers = [[number_of(row, claim.column, per) for row in side] for side in sides]
            texts = [", ".join(map(text, side)) for side in sides]
            equation = f" {signs.get(claim.compared_as, 'and')} ".join(filter(None, texts))
            left, *others = (side[0] if len(side) == 1 else None for side in numbers)
            if left is not None and claim.compared_as in signs and (right := others[0]):
                equation += f" = {plain(left / right if claim.compared_as == 'ratio' else left - right)}"
            yield f"    round {number + 1}: {equation}"
            yield from (f"      {run_folder(machine, row['run'])}" for side in sides for row in side)


def claim_lines(verdicts: Iterable[Verdict]) -> list[str]:
    """A line per claim: mark, verdict, basis, number, statement; decided ones come first, and documents' claims before ours."""
    from scalestudy.claims.basis import BASES, MARKS, OURS
    from scalestudy.claims.words import interval_text

    def place(each: Verdict) -> tuple[int, int, bool]:
        return [*MARKS].index(each.verdict), [*BASES].index(each.basis), each.origin == OURS

    lines = []
    for each in sorted(verdicts, key=place):
        number = interval_text(each.estimate, each.low, each.high, each.unit)
        line = f"{each.sign} {each.verdict:18} {each.basis:20} {number:>26}  {'(ours) ' if each.origin == OURS else ''}"
        line += f"{each.id}: {each.statement}"
        line += f" ({each.reason})" if each.reason else ""
        line += f" [{'; '.join(each.stand_ins)}]" if each.stand_ins else ""
        lines.append(line + (" [changed after measuring]" if each.changed_after_measuring else ""))
    return lines


def denominator(verdicts: Sequence[Verdict]) -> list[str]:
    """The number of claims, and the bases of their verdicts."""
    from scalestudy.claims.basis import OURS, tallies
    from scalestudy.claims.inference import ERROR, holm
    from scalestudy.spec.labels import counted

    ours = sum(each.origin == OURS for each in verdicts)
    lines = [f"{counted(len(verdicts), 'claim')}: {len(verdicts) - ours} of documents, {ours} ours"]
    lines += [f"  {tally}" for tally in tallies((each.basis, each.origin, each.verdict) for each in verdicts)]
    tested = [(each.p, each.p_holm) for each in verdicts if each.p is not None and each.p_holm is not None]
    decided = [p_holm <= ERROR for _, p_holm in tested]
    over_all = [p <= ERROR for p in holm(p for p, _ in tested)]
    if lost := sum(before and not after for before, after in zip(decided, over_all, strict=True)):
        family = "would not stand if all studies' claims were one family (Holm)"
        lines.append(f"Of {sum(decided)} decisions {lost} {family}.")
    return lines


def _margin(context: click.Context, option: click.Parameter, text: str) -> float:
    """`3%` or `0.03` as a share, at least 0 and below 1."""
    with suppress(ValueError):
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 <= share < 1:
            return share
    raise click.BadParameter(f"`{text}` is not a margin: give a fraction of the speed, such as 3% or 0.03")


@click.command(name="compare")
@click.argument("before", nargs=-1)
@click.argument("after")
@click.option("--nodes", is_flag=True, help="Each node of one folder against its others.")
@click.option(
    "--margin",
    metavar="PERCENT",
    callback=_margin,
    default="3%",
    show_default=True,
    help="Relative change that still counts as `same`; equal one-rank runs vary by about this much on a quiet machine.",
)
@click.option("--study", default=None, help="Only the configurations of this study.")
@click.option("--column", default="throughput_samples_per_s", show_default=True, help="A column of rates or times.")
@click.option(
    "--across",
    default="",
    metavar="KEY[,KEY]",
    help="What may differ because it is the question: hardware, software, code, or one key such as torch.",
)
@click.option("--out", type=FILE, default=None, help="Table to write; default results/comparisons/BEFORE_AFTER.csv.")
def compare(
    before: tuple[str, ...],
    after: str,
    nodes: bool,
    margin: float,
    study: str | None,
    column: str,
    across: str,
    out: Path | None,
) -> None:
    """Compare folders of results: machines, campaigns or versions. Is AFTER slower than BEFORE?

    Each is a name in results/ or a path; with --nodes, one folder of runs that name their nodes. A gate needs three campaigns
    before, because nights differ; of fewer, the changes are shown and nothing is decided. Writes a CSV table.
    Exit status: 1 where a configuration is slower, else 3 where one is undecided, else 0.

    \b
    Example: scalestudy compare local local+night_2 local+night_3 local+candidate --across code
    Example: scalestudy compare ../release/results/local local --across code --margin 5%
    Example: scalestudy compare my_cluster --nodes --study acceptance --margin 5%
    """
    from scalestudy.analysis.compare import compare, compare_nodes, exit_status
    from scalestudy.analysis.recorded import read_records
    from scalestudy.report import comparison as comparison_report

    if nodes == bool(before):
        raise UserError("give two folders or more, or one with --nodes", "compare", "see scalestudy compare --help")
    old, new = [read_records(name) for name in before], read_records(after)
    names = comparison_report.configuration_names(new.name, study)
    only = None if study is None else names
    if nodes:
        comparison = compare_nodes(new, margin, column, only)
    else:
        words = [word.strip() for word in across.split(",") if word.strip()]
        comparison = compare(old, new, margin, words, column, only)
    click.echo(comparison_report.headline(comparison))
    lines = comparison_report.named(comparison, names)
    for name, row in lines:
        if row.change.verdict != "same":
            speed = f"{name.study}: {name.text}: speed {comparison_report.change_text(row.change)}"
            remarks = comparison_report.remarks(row)
            click.echo(f"  {row.change.verdict:9} {speed}" + (f" ({remarks})" if remarks else ""))
    ends = (new.name, "nodes") if nodes else (old[0].name, new.name)
    click.echo("\n".join(comparison_report.notes(comparison)))
    file = out or comparison_file(*ends)
    comparison_report.write_comparison(comparison, lines, file)
    click.echo(f"  {file}")
    sys.exit(exit_status(comparison))


@click.command(name="forget")
@click.argument("runs", nargs=-1)
@MACHINE
@click.option("--skipped", is_flag=True, help="All skipped runs, once what was missing is there.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def forget(runs: tuple[str, ...], machine: str, skipped: bool, yes: bool) -> None:
    """Delete the results of runs, so that they are run again. history.jsonl keeps the time that they took.

    With skipped runs, the manifests of data that was not available are deleted too, so that it is looked for again.

    Example: scalestudy forget small_cnn.digits.allreduce.x2.r0-0123456789ab
    """
    from scalestudy.launch.trainer_lock import trainer_of
    from scalestudy.results.stored import is_skipped, status_of
    from scalestudy.spec.labels import counted

    folder = RESULTS / machine / "runs"
    # A link in the place of a run would have files elsewhere deleted.
    run_names = sorted(path.name for path in folder.glob("*") if path.is_dir() and not path.is_symlink())
    for run in runs:
        if run not in run_names:
            remedy = f"its folder has {len(run_names)} runs; the report lists those of each study"
            if near := difflib.get_close_matches(run, run_names, n=1):
                remedy = f"did you mean `{near[0]}`?"
            raise UserError(f"there is no run `{run}`", str(folder), remedy)
    statuses = {run: status_of(machine, run) for run in (*runs, *(run_names if skipped else ()))}
    chosen = [run for run, status in statuses.items() if run in runs or status == "skipped"]
    if not chosen:
        click.echo("nothing to forget")
        return
    click.echo("\n".join(f"{statuses[run]:9} {run}" for run in chosen))
    if not yes:
        with suppress(click.exceptions.Abort):  # Ctrl-C, or no terminal to ask on
            yes = click.confirm(f"Delete {counted(len(chosen), 'run')}?", default=False, err=True)
    if not yes:
        raise UserError("nothing is deleted", "forget", "--yes deletes without asking")
    for run in chosen:  # one may have begun since the question
        if trainer := trainer_of(run_folder(machine, run)):
            what = f"is being made now, by {trainer}: nothing is deleted"
            raise UserError(what, str(run_folder(machine, run)), "wait for its end, or end that process first")
    if any(statuses[run] == "skipped" for run in chosen):
        for manifest in (RESULTS / "data").glob("*/manifest.json"):
            if is_skipped(manifest):
                manifest.unlink()
    for run in chosen:
        # The result goes first: what is left of a deletion that is interrupted is no result.
        result_file(machine, run).unlink(missing_ok=True)
        shutil.rmtree(run_folder(machine, run))


LEDGER = Path(".scalestudy/jobs.jsonl")
UNTOLD = ("finished", "its command failed")
"""Ends of jobs that say nothing about the cause of a missing result."""
MAX_LINE, MAX_REFUTED = 200, 3
"""Characters of a log's line, and refuted claims, that a summary shows."""


@click.command(name="summary")
@MACHINE
@SCALE
@click.option("--studies", default="all", help="Names, separated by commas, or all.")
def summary(machine: str, scale: str, studies: str) -> None:
    """Answer the studies' questions, count the verdicts, and list omissions with reasons.

    Counts come first, so that the answers stand where the terminal ends.

    Example: scalestudy summary
    """
    from scalestudy.report.answers import first_answers, this_machine, warnings_of
    from scalestudy.results.stored import read_result
    from scalestudy.spec.study import left_out_of

    chosen_studies = studies_of(machine, scale, None if studies == "all" else studies.split(","))
    causes = ends_of_jobs(machine)
    left_out: Counter[str] = Counter()
    for study in chosen_studies:
        states: Counter[str] = Counter()
        runs = (*study.runs, *study.explained)
        for run in runs:
            result = read_result(machine, run)
            states["without a result" if result is None else result["status"]] += 1
            if result is None:
                left_out[f"{study.name}: {why_missing(run_folder(machine, run.id), causes.get(run.id, ''))}"] += 1
                continue
            if result["status"] != "valid":
                left_out[f"{study.name}: {result['status']}: {result['reason']}"] += 1
        files = [figure_file(machine, scale, study.name, figure.file_name) for figure in study.figures]
        files += [table_file(machine, scale, study.name, table.name) for table in study.tables]
        newest_s = _newest_result_s(study, machine)
        current = sum(file.exists() and file.stat().st_mtime >= newest_s for file in files)
        counts = ", ".join(f"{count} {status}" for status, count in states.items())
        products = f"{current} of {len(files)} figures and tables up to date"
        click.echo(f"{study.title}: {counts} of {len(runs)} runs; {products}")
    if warnings := warnings_of(chosen_studies, machine):
        click.echo("\n  ".join(["\nWarnings of valid runs:", *warnings]))
    width = min(shutil.get_terminal_size().columns, 120)

    def say(text: str, head: str = "") -> None:
        indent = " " * len(head)
        click.echo(textwrap.fill(head + text, width, subsequent_indent=indent, break_on_hyphens=False))

    click.echo("")
    say(this_machine(chosen_studies, machine))
    answers, unanswered = first_answers(chosen_studies, machine)
    for text in (*(sentence for _, sentence in answers), *(f"Not answered: {reason}" for reason in unanswered)):
        say(text, "- ")
    if verdicts := [verdict for study in chosen_studies for verdict in verdicts_of(study, machine)]:
        refuted = [verdict for verdict in verdicts if verdict.verdict == "not reproduced"][:MAX_REFUTED]
        number, *bases = map(str.strip, denominator(verdicts))
        where = "" if (machine, scale) == ("local", "mini") else f" --machine {machine} --scale {scale}"
        say(f"{number}. By basis: {'; '.join(bases).rstrip('.')}. Reasons: scalestudy claims{where}")
        for line in claim_lines(refuted):
            say(line, "- ")
    beyond = left_out_of(chosen_studies)
    if left_out or beyond:
        click.echo("\n  ".join(["Left out:", *beyond, *(f"{count} × {why}" for why, count in left_out.items())]))
    page = report_file(machine, scale)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if text and all(f'<h2 id="{study.name}">' in text for study in chosen_studies):
        is_old = page.stat().st_mtime < max(_newest_result_s(study, machine) for study in chosen_studies)
        click.echo(f"Report: {page}{'  (older than its runs)' if is_old else ''}")


def ends_of_jobs(machine: str) -> dict[str, str]:
    """By run, the cause of the end of its last job, in the words of the executor, which submitted it from this folder."""
    causes: dict[str, str] = {}
    for event in json_lines(LEDGER):
        label = str(event.get("job", ""))
        run = re.search(rf"(?:^| |/){re.escape(machine)}(?: |/runs/)([\w.]+-[0-9a-f]{{12}})\b", label)
        if run is not None and event.get("cause") is not None:
            causes[run[1]] = event["cause"]
    return causes


def _newest_result_s(study: Study, machine: str) -> float:
    """Return when the newest result of a study was written, seconds since 1970; infinity where it has none."""
    results = (result_file(machine, run.id) for run in study.runs)
    return max((result.stat().st_mtime for result in results if result.exists()), default=math.inf)


def why_missing(folder: Path, of_job: str = "") -> str:
    """Why a run has no result: its own message at its stop, else why its job ended where the executor knows that, else the
    last line of its log, else that it was not run.
    """
    from scalestudy.results.stored import state_of

    log, state = folder / "log" / "train.log", state_of(folder)
    cause = state.get("cause", "") if state.get("state") in ("failed", "checkpointed") else ""
    if state.get("state") == "checkpointed":
        return f"stopped at a checkpoint: {cause}" if cause else "stopped at a checkpoint"
    lines = [visible(line).strip() for line in tail(log).splitlines()]
    cause = cause or ("" if of_job in UNTOLD else of_job) or next((line for line in reversed(lines) if line), "")
    if not cause:
        return f"no result; its log is empty: {log}" if log.exists() else "not run"
    shortened = cause if len(cause) <= MAX_LINE else cause[: MAX_LINE - 1] + "…"
    return f"no result: {shortened}" + (f" (log: {log})" if log.exists() else "")
