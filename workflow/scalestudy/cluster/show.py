"""A plan as a table in the terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from scalestudy.cluster.plan import Amounts, Plan, PlannedJob, Row

QUEUEING = "waiting in the queue is not included"
UNDER_A_DRY_RUN = 60
"""Lines under a dry run, whose own output is long."""

Submit = Mapping[str, list[str] | str]
"""The words of each job's submit line, by its name, or why the scheduler would refuse it."""

HEAD = ("study", "strategy", "ranks", "jobs", "GPU h requested", "expected", "", "source", "node h", "CPU h", "written", "to nodes")  # fmt: skip
RIGHT = {2, 3, 4, 5, 6, 8, 9, 10, 11}


def table(plan: Plan, most_rows: int = 10_000) -> str:
    """The plan for people: a line per study, strategy and number of ranks, the total, and remarks."""
    if not plan.submitted:
        return "Plan: nothing to submit. All runs and datasets exist."
    lines = [_cells(plan, row.study, row.strategy, row.ranks, row.jobs, row.amounts, row.kind) for row in plan.rows]
    left = len(lines) - most_rows
    total = _cells(plan, "total", "", 0, tuple(plan.submitted), plan.total, plan.kind)
    shown = [HEAD, *lines[:most_rows], total]
    widths = [max(len(row[column]) for row in shown) for column in range(len(HEAD))]
    text = [_line(row, widths) for row in shown]
    rule = "-" * len(text[0])
    more = [f"… and {left} more lines: scalestudy plan"] if left > 0 else []
    title = f"Plan for machine {plan.machine_name}, scale {plan.scale}"
    return "\n".join([title, text[0], rule, *text[1:-1], *more, rule, text[-1], "", *_notes(plan)])


def _cells(
    plan: Plan, study: str, strategy: str, ranks: int, jobs: Sequence[PlannedJob], amounts: Amounts, kind: str
) -> tuple[str, ...]:
    chained = sum(job.resources.links for job in jobs) - len(jobs)
    return (
        study,
        strategy,
        str(ranks or ""),
        f"{len(jobs):,}" + (f"+{chained}" if chained else ""),
        f"{plan.hours(amounts.gpu[0]):,}",
        f"{plan.hours(amounts.gpu[1]):,}",
        f"– {plan.hours(amounts.gpu[2]):,}",
        kind,
        f"{plan.hours(amounts.node[0]):,}",
        f"{plan.hours(amounts.cpu[0]):,}",
        size(amounts.written_bytes),
        size(amounts.to_nodes_bytes),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [c.rjust(w) if i in RIGHT else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return "  ".join(padded).rstrip()


def _notes(plan: Plan) -> Iterator[str]:
    requested, low, high = map(span, plan.makespan_s)
    yield f"Makespan     {low} to {high} expected, {requested} if every job takes its whole walltime ({QUEUEING})"
    requested, low, high = map(span, plan.critical_s)
    yield f"Critical path {low} to {high} expected, {requested} requested: the time with unlimited nodes"
    chains = [job for job in plan.submitted if job.resources.links > 1]
    if chains:
        yield f"Chains       {len(chains)} runs take longer than one job may; jobs are counted as runs+further jobs:"
        for job in chains[:5]:
            yield f"             {job.name}: {job.resources.links} jobs of {minutes(job.resources.runtime)}"
        if len(chains) > 5:
            yield f"             and {len(chains) - 5} more"
    unlimited = [job for job in plan.submitted if job.resources.runtime is None]
    if unlimited:
        yield f"No walltime  {len(unlimited)} jobs, whose time is unknown, on a machine without a limit, count as 0"
    cost = plan.cost(plan.total)
    if cost is not None and plan.machine.prices is not None:
        unit = plan.machine.prices.currency
        yield f"Cost         {cost[0]:,.2f} {unit} at most; {cost[1]:,.2f} to {cost[2]:,.2f} expected"
    yield "Requested    walltime of whole nodes: 1.5 × the high end, rounded up to six minutes; idle devices count too"
    for text in plan.assumed:
        yield f"Assumed      {text}"


def minutes(value: int | None) -> str:
    """`90 min` as `1:30 h`."""
    return "unlimited" if value is None else f"{value // 60}:{value % 60:02d} h"


def span(seconds: int) -> str:
    """`40 s`, `7 min`, `3.5 h`, `4.2 days`."""
    if seconds < 90:
        return f"{seconds} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def size(value: int) -> str:
    """Bytes in the unit that leaves three digits."""
    number = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000:
            return f"{number:.3g} {unit}" if value else "0"
        number /= 1000
    return f"{number:,.3g} PB"


def as_json(plan: Plan, submit: Submit) -> dict[str, Any]:
    """The whole plan as plain data; hours are exact to the last digit shown."""
    jobs = [_job(plan, job, submit) for job in plan.jobs]
    return {
        "machine": plan.machine_name,
        "scale": plan.scale,
        "total": {"jobs": len(plan.submitted), **_amounts(plan, plan.total, plan.kind)},
        "critical_path_h": _hours3(plan.critical_s),
        "makespan_h": {**_hours3(plan.makespan_s), "queueing": QUEUEING},
        "assumed": list(plan.assumed),
        "rows": [_row(plan, row) for row in plan.rows],
        "jobs": jobs,
    }


def _row(plan: Plan, row: Row) -> dict[str, Any]:
    return {
        "study": row.study,
        "strategy": row.strategy or None,
        "ranks": row.ranks or None,
        "jobs": len(row.jobs),
        "links": sum(job.resources.links for job in row.jobs),
        **_amounts(plan, row.amounts, row.kind),
    }


def _amounts(plan: Plan, amounts: Amounts, kind: str) -> dict[str, Any]:
    cost = plan.cost(amounts)
    return {
        "gpu_hours_requested": number(plan.hours(amounts.gpu[0])),
        "gpu_hours_expected": {**_span(plan, amounts.gpu), "kind": kind},
        "node_hours_requested": number(plan.hours(amounts.node[0])),
        "node_hours_expected": _span(plan, amounts.node),
        "cpu_hours_requested": number(plan.hours(amounts.cpu[0])),
        "cpu_hours_expected": _span(plan, amounts.cpu),
        "written_bytes": amounts.written_bytes,
        "to_nodes_bytes": amounts.to_nodes_bytes,
        "cost": None
        if cost is None or plan.machine.prices is None
        else {
            "currency": plan.machine.prices.currency,
            "requested": number(cost[0]),
            "low": number(cost[1]),
            "high": number(cost[2]),
        },
    }


def _span(plan: Plan, units: tuple[int, int, int]) -> dict[str, int | float]:
    return {"low": number(plan.hours(units[1])), "high": number(plan.hours(units[2]))}


def _hours3(seconds: tuple[int, int, int]) -> dict[str, float]:
    return {name: round(one / 3600, 4) for name, one in zip(("requested", "low", "high"), seconds, strict=True)}


def _job(plan: Plan, job: PlannedJob, submit: Submit) -> dict[str, Any]:
    base: dict[str, Any] = {"rule": job.seen.rule, "name": job.name, "submitted": job.submitted}
    if not job.submitted:
        return base
    line = submit.get(job.name)
    return {
        **base,
        "study": job.study,
        "strategy": job.strategy or None,
        "ranks": job.ranks or None,
        "resources": job.resources.plain(),
        "links": [{"link": link + 1, "runtime": job.resources.runtime} for link in range(job.resources.links)],
        **_amounts(plan, job.amounts, job.estimate.kind if job.seen.rule == "train" else ""),
        "note": job.estimate.note if job.seen.rule == "train" else "",
        "submit": shlex.join(line) if isinstance(line, list) else None,
        "refused": line if isinstance(line, str) else None,
    }


def number(value: Decimal) -> int | float:
    """A decimal as the JSON number that is written with the same digits."""
    return int(value) if value == value.to_integral_value() else float(value)


COLUMNS = ("study", "strategy", "ranks", "jobs", "links", "gpu_hours_requested", "gpu_hours_expected_low",
           "gpu_hours_expected_high", "kind", "node_hours_requested", "node_hours_expected_low",
           "node_hours_expected_high", "cpu_hours_requested", "cpu_hours_expected_low", "cpu_hours_expected_high",
           "written_bytes", "to_nodes_bytes")  # fmt: skip


def as_csv(plan: Plan) -> str:
    """A line per study, strategy and number of ranks."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in plan.rows:
        a = row.amounts
        hours = [[str(plan.hours(units)) for units in group] for group in (a.gpu, a.node, a.cpu)]
        links = sum(job.resources.links for job in row.jobs)
        who = [row.study, row.strategy, row.ranks or "", len(row.jobs), links]
        writer.writerow([*who, *hours[0], row.kind, *hours[1], *hours[2], a.written_bytes, a.to_nodes_bytes])
    return stream.getvalue()


def by_hours(plan: Plan) -> str:
    """The runs by the GPU hours that they request, largest first, with the cumulative sum."""
    jobs = sorted(plan.submitted, key=lambda job: -job.amounts.gpu[0])
    lines = [f"{'GPU h requested':>15}  {'cumulative':>12}  run"]
    so_far = 0
    for job in jobs:
        so_far += job.amounts.gpu[0]
        lines.append(f"{plan.hours(job.amounts.gpu[0]):>15,}  {plan.hours(so_far):>12,}  {job.name}")
    return "\n".join(lines)
