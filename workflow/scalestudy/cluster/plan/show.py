"""A plan as a table in the terminal, as JSON and as CSV: all three from one list of rows."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from scalestudy.cluster.plan.planned import Plan, PlannedJob, Unit, sources_of
from scalestudy.spec.config import machine_file

GROUPS = ("strategy", "ranks")
"""Attributes that a table may be grouped by, beside the study."""
UNITS: tuple[Unit, ...] = ("gpu", "node", "cpu")
MAX_SPREAD = 5.0
"""P90 over P10 from which on the plan names the measurement that would narrow it."""
TO_MEASURE = {
    "flops": "step times follow from counted operations alone: run one configuration of each model first",
    "published": "name the links in the machine file (`device_link_gb_per_s`, `network_gb_per_s`), or run one configuration",
    "neighbours": "the runs that are known lie far from these: run the largest configuration once",
    "rates": "no data of this form has been prepared here: prepare one dataset first",
}
"""Remedy for a wide estimate, by its source."""
Row = dict[str, Any]
Submit = Mapping[str, list[str] | str]
"""The words of each job's submit line, by its name, or why the scheduler would refuse it."""


def rows_of(plan: Plan, by: Sequence[str] = ()) -> list[Row]:
    """A row per study and these attributes, then the total."""
    keys = ("study", *by)
    groups = [*plan.groups(by).items(), (("total", *("" for _ in by)), plan.submitted)]
    return [
        {**dict(zip(keys, key, strict=True)), **row(plan, jobs), "makespan_s": plan.makespan_of(jobs)}
        for key, jobs in groups
    ]


def row(plan: Plan, jobs: Sequence[PlannedJob]) -> Row:
    """Numbers of some jobs: hours with four digits, seconds, bytes."""
    found: Row = {"jobs": len(jobs), "attempts": sum(job.resources.links for job in jobs)}
    for unit in UNITS:
        low, middle, _ = plan.hours(jobs, unit)
        found |= {
            f"{unit}_hours_reserved": hours(plan.reserved(jobs, unit)),
            f"{unit}_hours_p10": hours(low),
            f"{unit}_hours_expected": hours(middle),
            f"{unit}_hours_to_request": hours(plan.to_request(jobs, unit)),
        }
    price = plan.cost(jobs)
    return {
        **found,
        "source": sources_of(jobs),
        "written_bytes": sum(job.stored.written_bytes for job in jobs),
        "files": sum(job.stored.files for job in jobs),
        "cost_expected": None if price is None else round(price[1], 2),
        "cost_to_request": None if price is None else round(price[2], 2),
    }


def hours(value: float) -> int | float:
    """Hours to four digits, whole ones as whole numbers."""
    found = round(value, 4)
    return int(found) if found == int(found) else found


def table(plan: Plan, by: Sequence[str] = (), details: bool = False) -> str:
    """The plan for people: a line per study, the total, and remarks; with `details` further columns and remarks."""
    if not plan.submitted:
        return "Plan: nothing to submit. All runs and datasets exist."
    unit = plan.unit
    columns = columns_of(unit)
    names = ["study", *by, *(SHORT if not details else columns)]
    rows = rows_of(plan, by)
    heads = [columns[name][0] if name in columns else name for name in names]
    cells = [[columns[name][1](row) if name in columns else str(row[name]) for name in names] for row in rows]
    left = {"study", "strategy", "source"}
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for cell, width, name in zip(line, widths, names, strict=True)
        ).rstrip()
        for line in (heads, *cells)
    ]
    rule = "-" * max(map(len, lines))
    title = f"Plan for machine {plan.machine_name}, scale {plan.scale}"
    remarks = [*notes(plan, unit), *(detailed_notes(plan) if details else ["More         scalestudy plan --details"])]
    return "\n".join([title, lines[0], rule, *lines[1:-1], rule, lines[-1], "", *remarks])


SHORT = ("jobs", "expected", "to_request", "makespan")


def columns_of(unit: Unit) -> dict[str, tuple[str, Callable[[Row], str]]]:
    """Head and cell of each column of the table."""
    word = "node" if unit == "node" else "GPU"

    def known(row: Row, text: str) -> str:
        return "–" if row["source"] == "unknown" else text

    return {
        "jobs": ("jobs", lambda row: f"{row['jobs']:,}" + _further(row)),
        "reserved": (f"reserved {word} h", lambda row: f"{row[f'{unit}_hours_reserved']:,}"),
        "p10": ("P10", lambda row: known(row, digits(row[f"{unit}_hours_p10"]))),
        "expected": (f"expected {word} h", lambda row: known(row, digits(row[f"{unit}_hours_expected"]))),
        "to_request": (f"to request {word} h", lambda row: digits(row[f"{unit}_hours_to_request"])),
        "source": ("source", lambda row: row["source"]),
        "makespan": ("makespan", lambda row: known(row, span(row["makespan_s"]))),
        "written": ("written", lambda row: size(row["written_bytes"])),
    }


def _further(row: Row) -> str:
    return f"+{row['attempts'] - row['jobs']}" if row["attempts"] > row["jobs"] else ""


def notes(plan: Plan, unit: Unit) -> Iterator[str]:
    """Remarks that belong to every plan, a line each."""
    word = "node" if unit == "node" else "GPU"
    reserved = hours(plan.reserved(plan.submitted, unit))
    yield f"Reserved     {reserved:,} {word} h: walltimes of whole nodes, as the jobs are submitted; idle devices count too"
    if plan.unknown:
        asked = hours(plan.reserved(plan.unknown, unit))
        yield f"Unknown      {len(plan.unknown)} jobs without an estimate: their {asked:,} reserved {word} h are in what is to be requested"
    yield from _wide(plan, unit)
    price = plan.cost(plan.submitted)
    if price is not None and plan.machine.prices is not None:
        yield f"Cost         {price[1]:,.2f} {plan.machine.prices.currency} expected, {price[2]:,.2f} to request"
    for text in plan.left_out:
        yield f"Left out     {text}"


def _wide(plan: Plan, unit: Unit) -> Iterator[str]:
    """Studies with percentiles far apart, by the measurement that would narrow them."""
    wide: dict[str, list[str]] = {}
    for (study,), jobs in plan.groups().items():
        known = [job for job in jobs if job.estimate.known]
        low, _, high = plan.hours(known, unit) if known else (0.0, 0.0, 0.0)
        if high > MAX_SPREAD * low:
            worst = max(known, key=lambda job: job.interval_s[1] / max(1.0, job.interval_s[0]))
            wide.setdefault(worst.estimate.kind, []).append(f"{study} ({digits(low)} to {digits(high)} h)")
    for kind, studies in wide.items():
        more = f", and {len(studies) - 3} more studies" if len(studies) > 3 else ""
        yield f"Wide         {', '.join(studies[:3])}{more}, P10 to P90; {TO_MEASURE.get(kind, 'run one configuration first')}"


def detailed_notes(plan: Plan) -> Iterator[str]:
    """Remarks of `--details`: percentiles, makespan, queue, chains, energy, storage, assumptions."""
    yield "Percentiles  P10, expected (P50), to request (P90) of the sum, drawn from each job's own interval (P5 to P95)"
    low, middle, high = map(span, plan.makespan_s)
    yield f"Makespan     {middle} (P10 {low}, P90 {high}), without waiting for the first start; of one study: without the others"
    limits = plan.machine.limits
    if plan.machine.nodes and plan.machine.nodes > 1 and not (limits.most_nodes_running or limits.most_jobs):
        yield f"             with all {plan.machine.nodes:,} nodes: {machine_file(plan.machine_name)} has no `limits` of one user"
    for waited in plan.waited[:5]:
        yield (
            f"Queue        {waited.like} waited {span(waited.median_s)} (median; P90 {span(waited.p90_s)}) from submission "
            f"to start: history of this folder, {waited.jobs:,} jobs"
        )
    chains = [job for job in plan.submitted if job.resources.links > 1]
    for job in chains[:5]:
        yield f"Chain        {job.name}: {job.resources.links} jobs of {minutes(job.resources.runtime)}"
    if len(chains) > 5:
        yield f"             and {len(chains) - 5} more runs that take longer than one job may"
    yield from energy(plan)
    yield f"Storage      {storage(plan)}"
    for text in plan.assumed:
        yield f"Assumed      {text}"


def energy(plan: Plan) -> Iterator[str]:
    """Energy and greenhouse gases, with the source of the power."""
    found, power = plan.kilowatt_hours(), plan.machine.power
    if found is None or power is None:
        return
    low, middle, high = map(digits, found)
    of = "accelerators alone" if power.node_watts is None else "nodes" if power.device_watts is None else "whole nodes"
    text = f"Energy       {middle} kWh (P10 {low}, P90 {high}), {of}"
    if power.co2_g_per_kwh is not None:
        text += f"; {digits(found[1] * power.co2_g_per_kwh / 1000)} kg CO2e at {power.co2_g_per_kwh:g} g/kWh"
    source = plan.machine.sources.get("power")
    yield text + (f"; power: {source}" if source else "")


def storage(plan: Plan) -> str:
    """The most storage at one time, and the rest that stays."""
    most, scratch_gib = plan.peak, plan.machine.scratch_gib
    stay = size(sum(job.stored.written_bytes for job in plan.submitted))
    files = sum(job.stored.files for job in plan.submitted)
    text = (
        f"{size(most.bytes)} and {most.files:,} files at most, checkpoints of running jobs included; "
        f"{stay} and {files:,} files stay"
    )
    if most.node_bytes:
        text += f"; {size(most.node_bytes)} on a node's own disk"
        if scratch_gib is not None and most.node_bytes > scratch_gib * 2**30:
            text += f", which has {size(scratch_gib * 2**30)}: stage shards, or less data"
    return text


def digits(value: float) -> str:
    """A number with its two significant digits: `2,400`, `0.053`."""
    return f"{float(f'{value:.2g}'):,.10g}"


def minutes(value: int | None) -> str:
    """`90 min` as `1:30 h`."""
    return "unlimited" if value is None else f"{value // 60}:{value % 60:02d} h"


def span(seconds: float) -> str:
    """`40 s`, `7 min`, `3.5 h`, `42 days`, with two significant digits."""
    for limit, unit_s, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h"), (math.inf, 86_400, "days")):
        if seconds < limit:
            return f"{digits(seconds / unit_s)} {name}"
    raise AssertionError(seconds)


def size(value: float) -> str:
    """Bytes in the unit that leaves three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000:
            return f"{value:.3g} {unit}" if value else "0"
        value /= 1000
    return f"{value:,.3g} PB"


def as_json(plan: Plan, submit: Submit) -> dict[str, Any]:
    """The whole plan as plain data."""
    *rows, total = rows_of(plan, GROUPS)
    return {
        "machine": plan.machine_name,
        "scale": plan.scale,
        "total": total,
        "makespan_s": dict(zip(("p10", "p50", "p90"), map(round, plan.makespan_s), strict=True)),
        "unknown": {"jobs": len(plan.unknown), "gpu_hours_reserved": hours(plan.reserved(plan.unknown, "gpu"))},
        "storage": asdict(plan.peak),
        "waited": [asdict(waited) for waited in plan.waited],
        "assumed": list(plan.assumed),
        "left_out": list(plan.left_out),
        "rows": rows,
        "jobs": [_job(plan, job, submit) for job in plan.jobs],
    }


def _job(plan: Plan, job: PlannedJob, submit: Submit) -> Row:
    base: Row = {"rule": job.seen.rule, "name": job.name, "submitted": job.submitted}
    if not job.submitted:
        return base
    line = submit.get(job.name)
    return {
        **base,
        "study": job.study,
        "strategy": job.strategy or None,
        "ranks": job.ranks or None,
        "resources": job.resources.plain(),
        **row(plan, [job]),
        "note": "; ".join(filter(None, (job.estimate.note, job.estimate.assumed))),
        "submit": shlex.join(line) if isinstance(line, list) else None,
        "refused": line if isinstance(line, str) else None,
    }


def as_csv(plan: Plan) -> str:
    """A line per study, strategy and number of ranks."""
    *rows, total = rows_of(plan, GROUPS)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(total), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
