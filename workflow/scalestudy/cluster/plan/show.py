"""A plan as a table in the terminal and as JSON, both from one list of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scalestudy.cluster.plan.expected import KINDS
from scalestudy.cluster.plan.hours import Plan, PlannedJob, Unit
from scalestudy.errors import duration
from scalestudy.spec.layout import machine_file

UNITS: tuple[Unit, ...] = ("gpu", "node")
WORDS: dict[Unit, str] = {"gpu": "GPU", "node": "node"}
Row = dict[str, Any]


def rows_of(plan: Plan) -> list[Row]:
    """A row per study, then the total."""
    return [
        {"study": study, **_row(plan, jobs), "makespan_s": _makespan(plan, jobs)}
        for study, jobs in {**plan.by_study(), "total": plan.submitted}.items()
    ]


def _row(plan: Plan, jobs: Sequence[PlannedJob]) -> Row:
    """Numbers of some jobs: hours with four digits, seconds, bytes."""
    row: Row = {"jobs": len(jobs), "attempts": sum(job.resources.links for job in jobs)}
    for unit in UNITS:
        low, middle, _ = plan.hours(jobs, unit)
        row[f"{unit}_hours_reserved"] = hours(plan.reserved(jobs, unit))
        row[f"{unit}_hours_p10"] = hours(low)
        row[f"{unit}_hours_expected"] = hours(middle)
        row[f"{unit}_hours_to_request"] = hours(plan.to_request(jobs, unit))
    expected, most = cost(plan, jobs) if plan.machine.prices else (None, None)
    kinds = {job.estimate.kind for job in jobs}
    source = "+".join(kind for kind in KINDS if kind in kinds)
    return {**row, "source": source, "cost_expected": expected, "cost_to_request": most}


def cost(plan: Plan, jobs: Sequence[PlannedJob]) -> tuple[float, float]:
    """Expected price of some jobs, and the price to request, in the machine's currency."""
    return round(plan.hours(jobs, "price")[1], 2), round(plan.to_request(jobs, "price"), 2)


def _makespan(plan: Plan, jobs: Sequence[PlannedJob]) -> dict[str, int]:
    return dict(zip(("p10", "p50", "p90"), map(round, plan.makespan_s(jobs)), strict=True))


def hours(value: float) -> int | float:
    """Hours to four digits, whole ones as whole numbers."""
    number = round(value, 4)
    return int(number) if number == int(number) else number


def table(plan: Plan) -> str:
    """The plan for people: a line per study, the total, and remarks. Hours of submitted jobs, the time of others."""
    if not plan.submitted:
        return "Plan: nothing to submit. All runs and datasets exist."
    word = WORDS[plan.unit]
    numbers = [f"expected {word} h", f"to request {word} h", "makespan ≥"]
    numbers = numbers if plan.has_scheduler else ["expected", "up to (P90)"]
    cells = [["study", "jobs", *numbers, "source"], *(_cells(plan, row) for row in rows_of(plan))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *lines, total = (
        "  ".join([study.ljust(widths[0]), *map(str.rjust, inner, widths[1:-1]), source]).rstrip()
        for study, *inner, source in cells
    )
    rule = "-" * max(map(len, (head, total)))
    title = f"Plan for machine {plan.machine_name}, scale {plan.scale}"
    return "\n".join([title, head, rule, *lines, rule, total, "", *notes(plan)])


def _cells(plan: Plan, row: Row) -> list[str]:
    """A line of the table."""
    is_known, unit = row["source"] != "unknown", plan.unit
    further = row["attempts"] - row["jobs"] if plan.has_scheduler else 0
    jobs = f"{row['jobs']:,}" + (f"+{further}" if further > 0 else "")
    more = " + ?" if "unknown" in row["source"] and not plan.has_scheduler else ""
    middle, most = (duration(row["makespan_s"][name]) + more if is_known else "–" for name in ("p50", "p90"))
    if not plan.has_scheduler:
        return [row["study"], jobs, middle, most, row["source"]]
    expected = digits(row[f"{unit}_hours_expected"]) if is_known else "–"
    return [row["study"], jobs, expected, digits(row[f"{unit}_hours_to_request"]), middle, row["source"]]


def notes(plan: Plan) -> Iterator[str]:
    """Remarks, a line each."""
    yield from notes_on_requests(plan) if plan.has_scheduler else notes_on_time(plan)
    if plan.machine.prices is not None:
        expected, most = cost(plan, plan.submitted)
        at = "to request" if plan.has_scheduler else "at P90"
        yield f"Cost         {expected:,.2f} {plan.machine.prices.currency} expected, {most:,.2f} {at}"
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
        total = hours(plan.reserved(plan.unknown, unit))
        yield f"Unknown      {len(plan.unknown)} jobs without an estimate: their {total:,} reserved {word} h are in what is to be requested"
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
    row: Row = {"rule": job.seen.rule, "name": job.seen.name, "submitted": job.submitted}
    if not job.submitted:
        return row
    return {
        **row,
        "study": job.study,
        "resources": job.resources.to_dict(),
        **_row(plan, [job]),
        "note": "; ".join(filter(None, (job.estimate.note, job.estimate.assumed))),
    }
