"""The page of an application for computing time: what is asked, what it takes, how that is known, what less would save."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from scalestudy.analysis.identity import varied_columns
from scalestudy.cluster.costs import stored_files
from scalestudy.cluster.expected import kinds_of
from scalestudy.cluster.planned import Plan, PlannedJob, Unit
from scalestudy.cluster.show import energy, size, span
from scalestudy.files import canonical_json
from scalestudy.spec.columns import columns_of
from scalestudy.spec.study import Run, Study

if TYPE_CHECKING:
    from scalestudy.dag.project import Project

SOURCES = {
    "repeats": "what repeats of the same runs took on this machine",
    "neighbours": "what similar runs took on this machine: a set-up time, and a time per sample",
    "published": "published training times of this machine, or published step times of its accelerator",
    "flops": "counted operations over the accelerator's peak, at the utilisation that published step times have",
    "unknown": "nothing yet: short calibration runs come first",
}
RUN_FILES = 10
"""About how many files a run leaves, beside a log of each rank."""


def proposal(plan: Plan, project: Project, today: date) -> str:
    """The page as Markdown."""
    studies = [study for study in project.chosen if any(row.study == study.name for row in plan.rows)]
    unit: Unit = "gpu" if plan.total.gpu[0] else "node"
    hours = "GPU h" if unit == "gpu" else "node h"
    lines = [
        f"# Computing time on {plan.machine.description or plan.machine_name}",
        "",
        *_questions(studies),
        "## Request",
        "",
        *_request(plan, unit, hours),
        "## Where the numbers come from",
        "",
        *_sources(plan),
        "## Storage",
        "",
        *_storage(plan, project),
        "## Dates",
        "",
        *_dates(plan, today),
        "## What less would save",
        "",
        *_sensitivity(plan, studies, unit, hours),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' if number == 0 else '--:' for number in range(len(head)))}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _questions(studies: Sequence[Study]) -> Iterator[str]:
    yield "## Questions"
    yield ""
    for study in studies:
        source = f" ({study.source})" if study.source else ""
        yield f"- **{study.title or study.name}**: {study.question}{source}"
    yield ""


def _request(plan: Plan, unit: Unit, hours: str) -> Iterator[str]:
    groups: dict[str, list[PlannedJob]] = {}
    for row in plan.rows:
        groups.setdefault(row.study, []).extend(row.jobs)
    rows = list(groups.items())
    head = ("study", "jobs", "nodes of the largest", f"{hours}, P50", f"{hours}, P90", f"{hours}, all walltimes")
    yield from _table(head, (_row(plan, unit, name, jobs) for name, jobs in (*rows, ("**total**", plan.submitted))))
    _, middle, high = plan.percentiles(plan.submitted, unit)
    yield f"Requested: **{high:,} {hours}**, the amount that the runs exceed in one case out of ten. Half of the time {middle:,} are enough."
    cost = plan.cost(plan.submitted)
    if cost is not None and plan.machine.prices is not None:
        yield f"Charged: {cost[2]:,} {plan.machine.prices.currency} (P50), {cost[3]:,} (P90), {cost[0]:,} if every job takes its whole walltime."
    yield from (" ".join(line.split()).replace("Energy ", "Energy: ", 1) for line in energy(plan))
    if plan.awaiting:
        yield f"Not in these sums: {len(plan.awaiting)} runs of which nobody knows what they take, until calibration runs have told."
    yield ""


def _row(plan: Plan, unit: Unit, name: str, jobs: Sequence[PlannedJob]) -> tuple[str, ...]:
    _, middle, high = plan.percentiles(jobs, unit)
    requested = sum(getattr(job.amounts, unit)[0] for job in jobs)
    most = max(job.resources.nodes for job in jobs)
    return name, f"{len(jobs):,}", f"{most:,}", f"{middle:,}", f"{high:,}", f"{plan.hours(requested):,}"


def _sources(plan: Plan) -> Iterator[str]:
    runs = [job for job in plan.submitted if job.seen.rule == "train"]
    for kind in kinds_of(job.estimate for job in runs).split("+"):
        found = [job for job in runs if job.estimate.kind == kind]
        notes = list(dict.fromkeys(job.estimate.note.partition(";")[0] for job in found if job.estimate.note))
        more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
        said = f" ({', '.join(notes[:3])}{more})" if notes and kind != "unknown" else ""
        if found:
            yield f"- {len(found):,} runs: {SOURCES[kind]}{said}."
    yield "- Jobs that train nothing (data, builds): bounded by their walltime. GPUs that stand idle on nodes taken whole are counted."
    yield "- P50 and P90 of a sum are drawn from each run's own interval (P5 to P95); runs expected from the same source err together."
    yield from (f"- Assumed: {text}" for text in plan.assumed)
    yield ""


def _storage(plan: Plan, project: Project) -> Iterator[str]:
    files = 0
    for job in plan.submitted:
        if job.seen.rule == "train":
            files += RUN_FILES + job.ranks
        elif job.seen.rule == "dataset":
            files += stored_files(project.runs.run_with(job.seen.wildcards["dataset"]).spec)
    yield f"At most {size(plan.total.written_bytes)} in about {files:,} files: nothing is deleted while the studies run."
    yield f"{size(plan.total.to_nodes_bytes)} are read from it over all runs."
    yield ""


def _dates(plan: Plan, today: date) -> Iterator[str]:
    _, middle, high = plan.makespan_percentiles_s
    ends = [(today + timedelta(days=math.ceil(seconds / 86_400))).isoformat() for seconds in (middle, high)]
    yield f"{span(middle)} of running (P50), {span(high)} (P90): begun on {today.isoformat()}, done by {ends[0]} or {ends[1]}."
    yield "Waiting in the queue comes on top" + (
        "." if plan.wait_s is None else f"; jobs of this folder waited {span(round(plan.wait_s))} each (median)."
    )
    yield ""


def _sensitivity(plan: Plan, studies: Sequence[Study], unit: Unit, hours: str) -> Iterator[str]:
    rows = []
    for study in studies:
        planned = {job.name: job for job in plan.submitted if job.seen.rule == "train" and job.study == study.name}
        runs = [run for run in study.runs if run.id in planned]
        for axis, dropped in halved(study, runs):
            jobs = [planned[run.id] for run in dropped]
            saved = plan.percentiles(jobs, unit)[1] if jobs else Decimal(0)
            if jobs:
                rows.append((f"{study.name}: {axis}", f"{len(jobs):,}", f"{saved:,}"))
    yield "Each axis with half of its values (every second one is left out), all else as planned:"
    yield ""
    yield from _table(("axis", "runs fewer", f"{hours} fewer, P50"), rows)


def halved(study: Study, runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """For repeats and each varied key, the runs that go where every second value is left out."""
    columns = {run.id: {**columns_of(run.spec), "repeats": run.spec.repeat} for run in runs}
    for axis in ("repeats", *varied_columns(study)):
        values = list(dict.fromkeys(canonical_json(columns[run.id].get(axis)) for run in runs))
        out = set(values[1::2])
        if out:
            yield axis, [run for run in runs if canonical_json(columns[run.id].get(axis)) in out]
