"""The page of an application for computing time: what is asked, what it takes, how that is known, what less would save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scalestudy.analysis.identity import varied_columns
from scalestudy.cluster.plan import hours_figure
from scalestudy.cluster.plan.hours_figure import HoursOf
from scalestudy.cluster.plan.known import Known
from scalestudy.cluster.plan.planned import Plan, PlannedJob, Unit
from scalestudy.cluster.plan.show import ASKED, asked, energy, minutes, size, span, storage, waits
from scalestudy.errors import UserError
from scalestudy.files import canonical_json, write_text
from scalestudy.report.document import Bullets, Document, Heading, Paragraph, Part, Picture, Table, as_markdown
from scalestudy.spec.columns import columns_of
from scalestudy.spec.study import Run, Study

if TYPE_CHECKING:
    from scalestudy.dag.project import Project

SUFFIXES = (".md", ".pdf")
SOURCES = {
    "repeats": "what repeats of the same runs took on this machine",
    "neighbours": "what similar runs took on this machine: a set-up time, and a time per sample",
    "published": "published training times of this machine, or published step times of its accelerator",
    "flops": "counted operations over the accelerator's peak, at the utilisation that published step times have; above 100% "
    "is a convolution that needs fewer operations than are counted",
    "rates": "data prepared at a rate between the slowest that is assumed and the fastest that was measured",
    "unknown": "nothing yet, so that they are in none of the percentiles; of runs, short calibration runs come first",
}


def check_suffix(file: str) -> None:
    """UserError for a file that is neither Markdown nor PDF."""
    if Path(file).suffix not in SUFFIXES:
        remedy = "name a file that ends in .md or .pdf"
        raise UserError("a proposal is written as Markdown or PDF", file, remedy)


def write_proposal(file: str, plan: Plan, project: Project, known: Known) -> None:
    """Write the page as its file's name says."""
    check_suffix(file)
    if not plan.submitted:
        raise UserError("nothing would be submitted: all runs and datasets exist", file, "plan other studies")
    document = proposal(plan, project, known)
    if Path(file).suffix == ".md":
        write_text(file, as_markdown(document))
        return
    from scalestudy.report.document_pdf import write_pdf

    write_pdf(document, Path(file))


def proposal(plan: Plan, project: Project, known: Known) -> Document:
    """The page, part by part."""
    studies = [study for study in project.chosen if any(row.study == study.name for row in plan.rows)]
    unit: Unit = "gpu" if plan.total.gpu[0] else "node"
    hours = "GPU h" if unit == "gpu" else "node h"
    runs = sum(job.seen.rule == "train" for job in plan.submitted)
    return Document(
        f"Computing time on {plan.machine.description or plan.machine_name}",
        f"{runs:,} runs of {len(studies)} studies at scale {plan.scale}, planned on {known.today.isoformat()}",
        (
            *_requested(plan, unit, hours),
            Heading("Questions"),
            Bullets(tuple(map(_question, studies))),
            Heading("Request"),
            *_request(plan, unit, hours),
            Heading("Jobs"),
            *_jobs(plan, unit, hours),
            Heading("Where the numbers come from"),
            Bullets(tuple(_sources(plan))),
            Heading("Storage"),
            Paragraph(f"Needed: {storage(plan)}. Nothing is deleted while the studies run."),
            Paragraph(f"{size(plan.total.to_nodes_bytes)} are read from it over all runs."),
            Heading("Dates"),
            *_dates(plan, known),
            Heading("Savings from a smaller plan"),
            *_sensitivity(plan, studies, unit, hours),
        ),
    )


def _question(study: Study) -> str:
    source = f" ({study.source})" if study.source else ""
    return f"**{study.title or study.name}** (`{study.name}`): {study.question}{source}"


def rounded(hours: Decimal) -> str:
    """Hours with the digits that a plan can be held to: whole ones from a hundred on, else two that count."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2g}" if hours else "0"


def _requested(plan: Plan, unit: Unit, hours: str) -> Iterator[Part]:
    _, middle, high = plan.percentiles(plan.submitted, unit)
    unknown = plan.hours(sum(getattr(job.amounts, unit)[0] for job in plan.unknown))
    more = f", and {rounded(unknown)} as the whole walltime of jobs without an estimate" if unknown else ""
    yield Paragraph(
        f"Requested: **{rounded(high + unknown)} {hours}**: {rounded(high)}, which the jobs exceed in one case out of "
        f"ten{more}. Half of the time {rounded(middle + unknown)} are enough."
    )


def _request(plan: Plan, unit: Unit, hours: str) -> Iterator[Part]:
    groups: dict[str, list[PlannedJob]] = {}
    for row in plan.rows:
        groups.setdefault(row.study, []).extend(row.jobs)
    head = ("study", "jobs", "most nodes", "P10", "P50", "P90", "all walltimes")
    rows = [_row(plan, unit, name, jobs) for name, jobs in (*groups.items(), ("total", plan.submitted))]
    yield Table(head, tuple(rows), f"{hours} by study, idle GPUs of whole nodes included", total=True)
    bars = _bars(plan, unit, groups)
    if bars:
        caption = f"{hours} of each study: from P10 to P90, and what its jobs request."
        yield Picture(hours_figure.height(bars), caption, partial(hours_figure.draw, bars, hours))
    cost = plan.cost(plan.submitted)
    if cost is not None and plan.machine.prices is not None:
        currency = plan.machine.prices.currency
        yield Paragraph(
            f"Charged: {rounded(cost[2])} {currency} (P50), {rounded(cost[3])} (P90), {rounded(cost[0])} if every job takes its whole walltime."
        )
    for line in energy(plan):
        yield Paragraph(" ".join(line.split()).replace("Energy ", "Energy: ", 1) + ".")
    if plan.awaiting:
        yield Paragraph(
            f"Not in these sums: {len(plan.awaiting)} runs without an estimate until calibration runs have told."
        )


def _row(plan: Plan, unit: Unit, name: str, jobs: Sequence[PlannedJob]) -> tuple[str, ...]:
    requested = sum(getattr(job.amounts, unit)[0] for job in jobs)
    most = max(job.resources.nodes for job in jobs)
    known = any(job.estimate.known for job in jobs)
    drawn = map(rounded, plan.percentiles(jobs, unit)) if known else ("–", "–", "–")
    return name, f"{len(jobs):,}", f"{most:,}", *drawn, rounded(plan.hours(requested))


def _jobs(plan: Plan, unit: Unit, hours: str) -> Iterator[Part]:
    """What is submitted, by the number of nodes: what a centre's queues have to take."""
    sizes: dict[int, list[PlannedJob]] = {}
    for job in plan.submitted:
        sizes.setdefault(job.resources.nodes, []).append(job)
    rows = []
    for nodes, jobs in sorted(sizes.items()):
        asked = [job.resources for job in jobs]
        longest = max((one.runtime or 0 for one in asked), default=0)
        rows.append(
            (f"{nodes:,}", f"{sum(one.links for one in asked):,}", minutes(longest or None),
             f"{max(one.gpus_held // one.nodes for one in asked)}", f"{max(one.mem_mb for one in asked) / 1024:,.0f}",
             rounded(plan.percentiles(jobs, unit)[1]))
        )  # fmt: skip
    head = ("nodes", "jobs", "longest", "GPUs per node", "GiB per node", f"{hours}, P50")
    yield Table(head, tuple(rows), "Jobs by their number of nodes, further jobs of a chain included")
    yield Paragraph(
        "A run has its nodes to itself. It ends after a measured window unless the whole training is what is asked for; "
        "before its walltime it writes a checkpoint, from which a further job resumes it."
    )
    if plan.unlimited:
        yield Paragraph(
            "No limit of a job's walltime is known of this machine; with one, longer runs are chains of jobs."
        )


def _bars(plan: Plan, unit: Unit, groups: Mapping[str, Sequence[PlannedJob]]) -> list[HoursOf]:
    """The studies that take time, for the figure."""
    found = []
    for name, jobs in groups.items():
        low, middle, high = (float(one) for one in plan.percentiles(jobs, unit))
        requested = float(plan.hours(sum(getattr(job.amounts, unit)[0] for job in jobs)))
        found.append(HoursOf(name, low, middle, high, requested))
    return [one for one in found if one.p90 > 0]


def _sources(plan: Plan) -> Iterator[str]:
    for kind in plan.kind.split("+"):
        found = [job for job in plan.submitted if job.estimate.kind == kind]
        notes = list(dict.fromkeys(job.estimate.note.partition(";")[0] for job in found if job.estimate.note))
        more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
        said = f" ({', '.join(notes[:3])}{more})" if notes and kind != "unknown" else ""
        what = "jobs" if any(job.seen.rule != "train" for job in found) else "runs"
        yield f"{len(found):,} {what}: {SOURCES[kind]}{said}."
    yield "GPUs that stand idle on nodes taken whole are counted."
    yield "P50 and P90 of a sum are drawn from each job's own interval (P5 to P95); jobs expected from the same source err together."
    yield from (f"Assumed: {text}" for text in plan.assumed)


def _dates(plan: Plan, known: Known) -> Iterator[Part]:
    _, middle, high = plan.makespan_percentiles_s
    ends = [(known.today + timedelta(days=math.ceil(seconds / 86_400))).isoformat() for seconds in (middle, high)]
    yield Paragraph(
        f"{span(middle)} of running (P50), {span(high)} (P90), {_at_once(plan)}: begun on {known.today.isoformat()}, done by {ends[0]} or {ends[1]}."
    )
    waited = [f"In the queue: {waits(one)}." for one in plan.waited]
    starts = [f"Start of {line}." for line in asked(known.starts)]
    if not waited and not starts:
        yield Paragraph("Waiting in the queue comes on top; no job of this folder has waited yet.")
    else:
        yield Paragraph(
            "Waiting in the queue comes on top:" if not starts else f"Waiting in the queue comes on top ({ASKED}):"
        )
        yield Bullets((*waited, *starts))
    if known.left:
        yield Paragraph("Left of what is granted now:")
        yield Bullets(tuple(one.said() for one in known.left))


def _at_once(plan: Plan) -> str:
    """How much may run at the same time."""
    limits = plan.machine.limits
    known = [
        f"{most:,} {what}" for most, what in ((limits.most_jobs, "jobs"), (limits.most_nodes_running, "nodes")) if most
    ]
    if known:
        return f"with at most {' and '.join(known)} of one user at the same time"
    if plan.machine.nodes and plan.machine.nodes > 1:
        return f"if all {plan.machine.nodes:,} nodes can be had at the same time, since no limit of one user is known"
    return "one run after the other"


LEAST_SAVED = Decimal("0.01")
"""Share of the whole below which an axis is not worth a line."""


def _sensitivity(plan: Plan, studies: Sequence[Study], unit: Unit, hours: str) -> Iterator[Part]:
    rows: list[tuple[Decimal, str, str]] = []
    whole = plan.percentiles(plan.submitted, unit)[1]
    for study in studies:
        planned = {job.name: job for job in plan.submitted if job.seen.rule == "train" and job.study == study.name}
        runs = [run for run in study.runs if run.id in planned]
        for axis, dropped in halved(study, runs):
            jobs = [planned[run.id] for run in dropped]
            saved = plan.percentiles(jobs, unit)[1] if jobs else Decimal(0)
            if jobs and saved >= LEAST_SAVED * whole:
                rows.append((saved, f"{study.name}: {axis}", f"{len(jobs):,}"))
    if not rows:
        yield Paragraph("No study of this plan has an axis of which half would save a hundredth of the whole.")
        return
    yield Paragraph(
        "Each axis with half of its values (every second one is left out), all else as planned. Axes that save less than "
        "a hundredth of the whole are not shown."
    )
    yield Table(
        ("axis", "runs fewer", f"{hours} fewer, P50"),
        tuple((axis, runs, rounded(saved)) for saved, axis, runs in sorted(rows, key=lambda row: -row[0])),
        "What half of each axis saves",
    )


def halved(study: Study, runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """For repeats and each varied key, the runs that go where every second value is left out."""
    columns = {run.id: {**columns_of(run.spec), "repeats": run.spec.repeat} for run in runs}
    for axis in ("repeats", *varied_columns(study)):
        values = list(dict.fromkeys(canonical_json(columns[run.id].get(axis)) for run in runs))
        out = set(values[1::2])
        if out:
            yield axis, [run for run in runs if canonical_json(columns[run.id].get(axis)) in out]
