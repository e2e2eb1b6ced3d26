"""A plan as a table in the terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from scalestudy.cluster.ledger.waits import Waited
from scalestudy.cluster.plan.expected import kinds_of
from scalestudy.cluster.plan.planned import Amounts, Plan, PlannedJob, PlanRow, Unit
from scalestudy.spec.config import machine_file

QUEUEING = "waiting in the queue is not included"
UNDER_A_DRY_RUN = 60
"""Lines under a dry run, whose own output is long."""

Submit = Mapping[str, list[str] | str]
"""The words of each job's submit line, by its name, or why the scheduler would refuse it."""

GROUPS = ("strategy", "ranks")
"""What a table may be grouped by, beside the study."""


def table(plan: Plan, most_rows: int = 10_000, by: Sequence[str] = ()) -> str:
    """The plan for people: a line per study (and strategy, number of ranks), the total, and what is to be said of it."""
    if not plan.submitted:
        return "Plan: nothing to submit. All runs and datasets exist."
    groups: dict[tuple[str, ...], list[PlanRow]] = {}
    for row in plan.rows:
        values = {"strategy": row.strategy, "ranks": str(row.ranks or "")}
        groups.setdefault((row.study, *(values[name] for name in by)), []).append(row)
    unit: Unit = "gpu" if plan.total.gpu[0] else "node"
    said = "GPU" if unit == "gpu" else "node"
    head = ("study", *by, "jobs", f"{said} h requested", "P10", "P50", "P90", "source", "node h", "written")
    lines = [_cells(plan, unit, key, rows) for key, rows in groups.items()]
    left = len(lines) - most_rows
    total = _cells(plan, unit, ("total", *("" for _ in by)), plan.rows)
    shown = [head, *lines[:most_rows], total]
    widths = [max(len(row[column]) for row in shown) for column in range(len(head))]
    text = [_line(row, widths, head) for row in shown]
    rule = "-" * max(map(len, text))
    more = [f"… and {left} more lines: scalestudy plan"] if left > 0 else []
    title = f"Plan for machine {plan.machine_name}, scale {plan.scale}"
    return "\n".join([title, text[0], rule, *text[1:-1], *more, rule, text[-1], "", *notes(plan, unit)])


def _cells(plan: Plan, unit: Unit, key: tuple[str, ...], rows: Sequence[PlanRow]) -> tuple[str, ...]:
    jobs = [job for row in rows for job in row.jobs]
    amounts = sum((row.amounts for row in rows), Amounts())
    chained = sum(job.resources.links for job in jobs) - len(jobs)
    return (
        *key,
        f"{len(jobs):,}" + (f"+{chained}" if chained else ""),
        f"{plan.hours(getattr(amounts, unit)[0]):,}",
        *percentiles(plan, jobs, unit),
        kinds_of(job.estimate for job in jobs),
        f"{plan.hours(amounts.node[0]):,}",
        size(amounts.written_bytes),
    )


def percentiles(plan: Plan, jobs: Sequence[PlannedJob], unit: Unit) -> list[str]:
    """P10, P50 and P90 as cells of a table; a dash each where nothing is known of any of the jobs."""
    if not any(job.estimate.known for job in jobs):
        return ["–", "–", "–"]
    return [f"{hours:,}" for hours in plan.percentiles(jobs, unit)]


LEFT = {"study", "strategy", "source"}


def _line(cells: Sequence[str], widths: Sequence[int], head: Sequence[str]) -> str:
    padded = [
        cell.ljust(width) if name in LEFT else cell.rjust(width)
        for cell, width, name in zip(cells, widths, head, strict=True)
    ]
    return "  ".join(padded).rstrip()


def notes(plan: Plan, unit: Unit) -> Iterator[str]:
    """Remarks below the table, a line each."""
    ends = [plan.hours(part) for part in getattr(plan.total, unit)]
    yield "Expected     P10, P50, P90 of the sum, drawn from each job's own interval (P5 to P95); estimates from one source share their error"
    yield f"Ends         {ends[1]:,} if every job takes its P5, {ends[2]:,} its P95, {ends[0]:,} its whole walltime"
    for number, text in enumerate(unknown(plan, unit)):
        yield f"{'Unknown' if number == 0 else '':13}{text}"
    low, middle, high = map(span, plan.makespan_percentiles_s)
    yield f"Makespan     {middle} (P10 {low}, P90 {high}), {span(plan.makespan_s[0])} if every job takes its whole walltime ({QUEUEING})"
    if plan.makespan_percentiles_s[2] > plan.makespan_s[0]:
        yield "             P90 is larger: a run that exceeds its walltime (the P95 of its own estimate) continues in another job,"
        yield "             and runs estimated from the same source exceed theirs together"
    limits = plan.machine.limits
    if plan.machine.nodes and plan.machine.nodes > 1 and not (limits.most_nodes_running or limits.most_jobs):
        yield f"             with all {plan.machine.nodes:,} nodes: {machine_file(plan.machine_name)} has no `limits` of one user"
    if plan.unlimited:
        longest = max(job.resources.runtime or 0 for job in plan.submitted)
        yield f"             with jobs of up to {minutes(longest)}: {machine_file(plan.machine_name)} has no `walltime_limit_h`"
    requested, low, high = map(span, plan.critical_s)
    yield f"Critical path {low} to {high} expected, {requested} requested: the time with unlimited nodes"
    for waited in plan.waited[:5]:
        yield f"Queue        {waits(waited)}"
    chains = [job for job in plan.submitted if job.resources.links > 1]
    if chains:
        yield f"Chains       {len(chains)} runs take longer than one job may; jobs are counted as runs+further jobs:"
        for job in chains[:5]:
            yield f"             {job.name}: {job.resources.links} jobs of {minutes(job.resources.runtime)}"
        if len(chains) > 5:
            yield f"             and {len(chains) - 5} more"
    cost = plan.cost(plan.submitted)
    if cost is not None and plan.machine.prices is not None:
        currency = plan.machine.prices.currency
        yield f"Cost         {cost[0]:,.2f} {currency} at most; expected {cost[2]:,.2f} (P10 {cost[1]:,.2f}, P90 {cost[3]:,.2f})"
    yield from energy(plan)
    yield f"Storage      {storage(plan)}"
    yield "Requested    walltime of whole nodes: the P95 and five minutes, rounded up to six; idle devices count too"
    for text in plan.assumed:
        yield f"Assumed      {text}"
    for text in plan.left_out:
        yield f"Left out     {text}"


def unknown(plan: Plan, unit: Unit) -> Iterator[str]:
    """What is not in the percentiles, because nobody knows what it takes."""
    if plan.unknown:
        counts = Counter(WHAT[job.seen.rule] for job in plan.unknown)
        of = ", ".join(f"{many} {what}{'s' * (many > 1)}" for what, many in counts.items())
        asked = plan.hours(sum(getattr(job.amounts, unit)[0] for job in plan.unknown))
        said = "GPU" if unit == "gpu" else "node"
        yield f"{of}, with {asked:,} {said} h requested: no estimate is available. They are not in P10, P50 and P90;"
        yield "in the makespan each takes its whole walltime"


WHAT = {"train": "run", "dataset": "dataset"}
"""What a rule's job is called."""


def energy(plan: Plan) -> Iterator[str]:
    """Energy and greenhouse gases, with the source of the power."""
    found, power = plan.kilowatt_hours(), plan.machine.power
    if found is None or power is None:
        return
    low, middle, high = found
    what = (
        "accelerators alone" if power.node_watts is None else "nodes" if power.device_watts is None else "whole nodes"
    )
    text = f"Energy       {middle:,.0f} kWh (P10 {low:,.0f}, P90 {high:,.0f}), {what}"
    if power.co2_g_per_kwh is not None:
        text += f"; {middle * power.co2_g_per_kwh / 1000:,.0f} kg CO2e at {power.co2_g_per_kwh:g} g/kWh"
    source = plan.machine.sources.get("power")
    yield text + (f"; power: {source}" if source else "")


def waits(waited: Waited) -> str:
    """What jobs of this folder have waited."""
    return (
        f"{waited.like} waited {span(round(waited.median_s))} (median; P90 {span(round(waited.p90_s))}) from submission to "
        f"start: history of this folder, {waited.jobs:,} jobs"
    )


def storage(plan: Plan) -> str:
    """The most storage at one time, and what stays."""
    most, machine = plan.peak, plan.machine
    text = (
        f"{size(most.bytes)} and {most.files:,} files at most, checkpoints of running jobs included; "
        f"{size(plan.total.written_bytes)} and {plan.total.files:,} files stay"
    )
    if most.node_bytes:
        text += f"; {size(most.node_bytes)} on a node's own disk"
        scratch = None if machine.scratch_gib is None else int(machine.scratch_gib * 2**30)
        if scratch is not None and most.node_bytes > scratch:
            text += f", which has {size(scratch)}: stage shards, or less data"
    return text


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
        "total": {"jobs": len(plan.submitted), **_amounts(plan, plan.total, plan.kind, plan.submitted)},
        "critical_path_h": _hours3(plan.critical_s),
        "makespan_h": {
            **_hours3(plan.makespan_s),
            **{name: round(one / 3600, 4) for name, one in zip(PERCENTILES, plan.makespan_percentiles_s, strict=True)},
            "queueing": QUEUEING,
        },
        "unknown": {
            "jobs": len(plan.unknown),
            "gpu_hours_requested": number(plan.hours(sum(job.amounts.gpu[0] for job in plan.unknown))),
            "node_hours_requested": number(plan.hours(sum(job.amounts.node[0] for job in plan.unknown))),
        },
        "storage": {"most_bytes": plan.peak.bytes, "most_files": plan.peak.files, "node_bytes": plan.peak.node_bytes},
        "waited": [asdict(waited) for waited in plan.waited],
        "assumed": list(plan.assumed),
        "left_out": list(plan.left_out),
        "rows": [_row(plan, row) for row in plan.rows],
        "jobs": jobs,
    }


def _row(plan: Plan, row: PlanRow) -> dict[str, Any]:
    return {
        "study": row.study,
        "strategy": row.strategy or None,
        "ranks": row.ranks or None,
        "jobs": len(row.jobs),
        "attempts": sum(job.resources.links for job in row.jobs),
        "links": sum(job.resources.links for job in row.jobs),  # the name of earlier versions
        **_amounts(plan, row.amounts, row.kind, row.jobs),
    }


PERCENTILES = ("p10", "p50", "p90")


def _amounts(plan: Plan, amounts: Amounts, kind: str, jobs: Sequence[PlannedJob]) -> dict[str, Any]:
    cost = plan.cost(jobs)
    return {
        "gpu_hours_requested": number(plan.hours(amounts.gpu[0])),
        "gpu_hours_expected": {**_span(plan, amounts.gpu), **_drawn(plan, jobs, "gpu"), "kind": kind},
        "node_hours_requested": number(plan.hours(amounts.node[0])),
        "node_hours_expected": {**_span(plan, amounts.node), **_drawn(plan, jobs, "node")},
        "cpu_hours_requested": number(plan.hours(amounts.cpu[0])),
        "cpu_hours_expected": {**_span(plan, amounts.cpu), **_drawn(plan, jobs, "cpu")},
        "written_bytes": amounts.written_bytes,
        "files": amounts.files,
        "to_nodes_bytes": amounts.to_nodes_bytes,
        "cost": None
        if cost is None or plan.machine.prices is None
        else {
            "currency": plan.machine.prices.currency,
            "requested": number(cost[0]),
            **{name: number(one) for name, one in zip(PERCENTILES, cost[1:], strict=True)},
        },
    }


def _drawn(plan: Plan, jobs: Sequence[PlannedJob], unit: Unit) -> dict[str, int | float]:
    found = plan.percentiles(jobs, unit)
    return {name: number(hours) for name, hours in zip(PERCENTILES, found, strict=True)}


def _span(plan: Plan, units: tuple[int, int, int]) -> dict[str, int | float]:
    return {"low": number(plan.hours(units[1])), "high": number(plan.hours(units[2]))}


def _hours3(seconds: tuple[int, int, int]) -> dict[str, float]:
    return {name: round(one / 3600, 4) for name, one in zip(("requested", "low", "high"), seconds, strict=True)}


def _job(plan: Plan, job: PlannedJob, submit: Submit) -> dict[str, Any]:
    base: dict[str, Any] = {"rule": job.seen.rule, "name": job.name, "submitted": job.submitted}
    if not job.submitted:
        return base
    line, attempts = submit.get(job.name), range(1, job.resources.links + 1)
    return {
        **base,
        "study": job.study,
        "strategy": job.strategy or None,
        "ranks": job.ranks or None,
        "resources": job.resources.plain(),
        "attempts": [{"attempt": number, "runtime": job.resources.runtime} for number in attempts],
        "links": [{"link": number, "runtime": job.resources.runtime} for number in attempts],  # of earlier versions
        **_amounts(plan, job.amounts, job.estimate.kind, [job]),
        "note": job.estimate.note,
        "submit": shlex.join(line) if isinstance(line, list) else None,
        "refused": line if isinstance(line, str) else None,
    }


def number(value: Decimal) -> int | float:
    """A decimal as the JSON number that is written with the same digits."""
    return int(value) if value == value.to_integral_value() else float(value)


COLUMNS = ("study", "strategy", "ranks", "jobs", "attempts", "gpu_hours_requested", "gpu_hours_expected_low",
           "gpu_hours_expected_high", "gpu_hours_p10", "gpu_hours_p50", "gpu_hours_p90", "kind", "node_hours_requested", "node_hours_expected_low",
           "node_hours_expected_high", "cpu_hours_requested", "cpu_hours_expected_low", "cpu_hours_expected_high",
           "written_bytes", "files", "to_nodes_bytes")  # fmt: skip


def as_csv(plan: Plan) -> str:
    """A line per study, strategy and number of ranks."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in plan.rows:
        a = row.amounts
        hours = [[str(plan.hours(units)) for units in group] for group in (a.gpu, a.node, a.cpu)]
        attempts = sum(job.resources.links for job in row.jobs)
        who = [row.study, row.strategy, row.ranks or "", len(row.jobs), attempts]
        drawn = plan.percentiles(row.jobs, "gpu")
        writer.writerow(
            [*who, *hours[0], *drawn, row.kind, *hours[1], *hours[2], a.written_bytes, a.files, a.to_nodes_bytes]
        )
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
