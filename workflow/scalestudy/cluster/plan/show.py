"""A plan as a table in the terminal and as JSON, both from one list of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scalestudy.cluster.plan.hours import Plan, PlannedJob, Unit, sources_of
from scalestudy.errors import duration
from scalestudy.spec.layout import machine_file

UNITS: tuple[Unit, ...] = ("gpu", "node")
WORDS: dict[Unit, str] = {"gpu": "GPU", "node": "node"}
MAX_SPREAD = 5.0
"""P90 over P10 from which on the plan names the measurement that would narrow it."""
MIN_WIDE_S = 60
"""Least P10 of a wide estimate in time, seconds: a plan that ends within minutes needs no remedy."""
TO_MEASURE = {
    "flops": "step times follow from counted operations alone: run one configuration of each model first",
    "published": "name the links in the machine file (`device_link_gb_per_s`, `network_gb_per_s`), or run one configuration",
    "neighbours": "the runs that are known lie far from these: run the largest configuration once",
    "window": "what the program takes before its window is assumed: run one configuration first",
    "rates": "prepare the data first: snakemake --until dataset, with the same targets and profile",
}
"""Remedy for a wide estimate, by its source."""
Row = dict[str, Any]


def rows_of(plan: Plan) -> list[Row]:
    """A row per study, then the total."""
    return [
        {"study": study, **_row(plan, jobs), "makespan_s": _makespan(plan, jobs)}
        for study, jobs in {**plan.by_study(), "total": plan.submitted}.items()
    ]


def _row(plan: Plan, jobs: Sequence[PlannedJob]) -> Row:
    """Numbers of some jobs: hours with four digits, seconds, bytes."""
    found: Row = {"jobs": len(jobs), "attempts": sum(job.resources.links for job in jobs)}
    for unit in UNITS:
        low, middle, _ = plan.hours(jobs, unit)
        found[f"{unit}_hours_reserved"] = hours(plan.reserved(jobs, unit))
        found[f"{unit}_hours_p10"] = hours(low)
        found[f"{unit}_hours_expected"] = hours(middle)
        found[f"{unit}_hours_to_request"] = hours(plan.to_request(jobs, unit))
    price = plan.cost(jobs)
    return {
        **found,
        "source": sources_of(jobs),
        "cost_expected": None if price is None else round(price[1], 2),
        "cost_to_request": None if price is None else round(price[2], 2),
    }


def _makespan(plan: Plan, jobs: Sequence[PlannedJob]) -> dict[str, int]:
    return dict(zip(("p10", "p50", "p90"), map(round, plan.makespan_s(jobs)), strict=True))


def hours(value: float) -> int | float:
    """Hours to four digits, whole ones as whole numbers."""
    found = round(value, 4)
    return int(found) if found == int(found) else found


def table(plan: Plan) -> str:
    """The plan for people: a line per study, the total, and remarks."""
    if not plan.submitted:
        return "Plan: nothing to submit. All runs and datasets exist."
    columns = columns_of(plan)
    cells = [["study", *columns]]
    cells += [[row["study"], *(cell(row) for cell in columns.values())] for row in rows_of(plan)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    to_left = [name in ("study", "source") for name in cells[0]]
    head, *lines, total = (
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, to_left, strict=True)
        ).rstrip()
        for row in cells
    )
    rule = "-" * max(map(len, (head, total)))
    title = f"Plan for machine {plan.machine_name}, scale {plan.scale}"
    return "\n".join([title, head, rule, *lines, rule, total, "", *notes(plan)])


def columns_of(plan: Plan) -> dict[str, Callable[[Row], str]]:
    """Return a function per column that makes its cell: hours and makespan of submitted jobs, the time of others."""
    unit, word = plan.unit, WORDS[plan.unit]

    def known(row: Row, text: str) -> str:
        return "–" if row["source"] == "unknown" else text

    def time(name: str) -> Callable[[Row], str]:
        more = "" if plan.has_scheduler else " + ?"
        return lambda row: known(row, duration(row["makespan_s"][name]) + more * ("unknown" in row["source"]))

    def jobs(row: Row) -> str:
        further = row["attempts"] - row["jobs"] if plan.has_scheduler else 0
        return f"{row['jobs']:,}" + (f"+{further}" if further > 0 else "")

    if not plan.has_scheduler:
        return {
            "jobs": jobs,
            "expected": time("p50"),
            "up to (P90)": time("p90"),
            "source": lambda row: row["source"],
        }
    return {
        "jobs": jobs,
        f"expected {word} h": lambda row: known(row, digits(row[f"{unit}_hours_expected"])),
        f"to request {word} h": lambda row: digits(row[f"{unit}_hours_to_request"]),
        "makespan ≥": time("p50"),
        "source": lambda row: row["source"],
    }


def notes(plan: Plan) -> Iterator[str]:
    """Remarks, a line each."""
    yield from notes_on_requests(plan) if plan.has_scheduler else notes_on_time(plan)
    wide: dict[str, list[str]] = {}
    for study, jobs in plan.by_study().items():
        known = [job for job in jobs if job.estimate.known]
        low, _, high = plan.hours(known, plan.unit) if plan.has_scheduler else plan.makespan_s(known)
        if high > MAX_SPREAD * (low if plan.has_scheduler else max(low, MIN_WIDE_S)):
            worst = max(known, key=lambda job: job.interval_s[1] / max(1.0, job.interval_s[0]))
            span = (
                f"{digits(low)} to {digits(high)} h" if plan.has_scheduler else f"{duration(low)} to {duration(high)}"
            )
            wide.setdefault(worst.estimate.kind, []).append(f"{study} ({span})")
    for kind, studies in wide.items():
        more = f", and {len(studies) - 3} more studies" if len(studies) > 3 else ""
        yield f"Wide         {', '.join(studies[:3])}{more}, P10 to P90; {TO_MEASURE.get(kind, 'run one configuration first')}"
    price = plan.cost(plan.submitted)
    if price is not None and plan.machine.prices is not None:
        most = "to request" if plan.has_scheduler else "at P90"
        yield f"Cost         {price[1]:,.2f} {plan.machine.prices.currency} expected, {price[2]:,.2f} {most}"
    yield from (f"Assumed      {text}" for text in plan.assumed)
    yield from (f"Left out     {text}" for text in plan.left_out)


def notes_on_requests(plan: Plan) -> Iterator[str]:
    """What is submitted to a scheduler."""
    unit, word = plan.unit, WORDS[plan.unit]
    reserved = hours(plan.reserved(plan.submitted, unit))
    yield f"Reserved     {reserved:,} {word} h: walltimes of whole nodes, as the jobs are submitted; idle devices count too"
    if further := sum(job.resources.links - 1 for job in plan.submitted):
        yield f"Jobs         +{further}: further jobs that continue runs beyond one job's walltime"
    if plan.unknown:
        asked = hours(plan.reserved(plan.unknown, unit))
        yield f"Unknown      {len(plan.unknown)} jobs without an estimate: their {asked:,} reserved {word} h are in what is to be requested"
    machine, limits = plan.machine, plan.machine.limits
    if machine.nodes and machine.nodes > 1 and not (limits.most_nodes_running or limits.most_jobs):
        yield f"Makespan     with all {machine.nodes:,} nodes: {machine_file(plan.machine_name)} has no `limits` of one user"


def notes_on_time(plan: Plan) -> Iterator[str]:
    """What runs here take, without a scheduler."""
    yield "Time         from the first start to the last end, here; one time in ten it is longer than P90"
    if plan.unit == "gpu":
        _, middle, high = map(digits, plan.hours(plan.submitted, "gpu"))
        yield f"GPU hours    {middle} expected, {high} at P90; idle GPUs of the node count too"
    if plan.unknown:
        yield f"Unknown      {len(plan.unknown)} jobs without an estimate (?): the first ones of each kind tell what the others take"


def digits(value: float) -> str:
    """A number with its two significant digits: `2,400`, `0.053`."""
    return f"{float(f'{value:.2g}'):,.10g}"


def as_json(plan: Plan) -> dict[str, Any]:
    """The whole plan as plain data."""
    *rows, total = rows_of(plan)
    return {
        "machine": plan.machine_name,
        "scale": plan.scale,
        "total": total,
        "makespan_s": _makespan(plan, plan.jobs),
        "unknown": {"jobs": len(plan.unknown), "gpu_hours_reserved": hours(plan.reserved(plan.unknown, "gpu"))},
        "assumed": plan.assumed,
        "left_out": list(plan.left_out),
        "rows": rows,
        "jobs": [_job(plan, job) for job in plan.jobs],
    }


def _job(plan: Plan, job: PlannedJob) -> Row:
    found: Row = {"rule": job.seen.rule, "name": job.seen.name, "submitted": job.submitted}
    if not job.submitted:
        return found
    return {
        **found,
        "study": job.study,
        "strategy": job.strategy or None,
        "ranks": job.ranks or None,
        "resources": job.resources.plain(),
        **_row(plan, [job]),
        "note": "; ".join(filter(None, (job.estimate.note, job.estimate.assumed))),
    }
