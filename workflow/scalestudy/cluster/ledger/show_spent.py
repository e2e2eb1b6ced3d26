"""`scalestudy plan --spent`: what was used, by project and period, and what is left; for people and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from scalestudy.cluster.ledger.left import WORDS, LeftOfGrant, accounting_of_site, left_by_asking, left_by_file
from scalestudy.cluster.ledger.spent import LedgerJob, SpentLine, lines, read_jobs, totals
from scalestudy.errors import UserError
from scalestudy.spec.accounting import Unit
from scalestudy.spec.machine import Machine


def spent(machine: Machine, today: date) -> tuple[str, dict[str, Any]]:
    """Text and data of the ledger of this folder. UserError where no job was ever submitted from here."""
    accounting, jobs = accounting_of_site(), read_jobs(today=today)
    if not jobs:
        remedy = "run a study through a profile with a scheduler first"
        raise UserError("no job has been submitted from this folder", "scalestudy plan --spent", remedy)
    used = lines(jobs, accounting, machine)
    open_ = [job for job in jobs if job.used_s is None]
    told, unknown = left_by_asking(accounting, machine)
    left = [*told, *left_by_file(accounting, jobs, machine, today)]
    text = "\n".join(_text(used, open_, left, unknown, machine))
    data = {
        "period": accounting.period,
        "used": [_plain(line) for line in used],
        "not_ended": {"jobs": len(open_), **_rounded(totals(open_, machine))},
        "left": [asdict(one) for one in left],
        "unknown": unknown,
    }
    return text, data


def _plain(line: SpentLine) -> dict[str, Any]:
    span = line.span
    return {
        "project": line.project, "period": span.name, "first_day": span.first.isoformat(),
        "last_day": span.last.isoformat(), "jobs": line.jobs, **_rounded(line.hours),
    }  # fmt: skip


def _rounded(hours: Any) -> dict[str, float]:
    return {unit: round(amount, 4) for unit, amount in hours.items()}


def _text(
    used: Sequence[SpentLine],
    open_: Sequence[LedgerJob],
    left: Sequence[LeftOfGrant],
    unknown: Sequence[str],
    machine: Machine,
) -> Iterator[str]:
    units = list(totals([], machine))
    head = ("project", "period", "days", "jobs", *(_head(unit, machine) for unit in units))
    rows = [
        (line.project, line.span.name, f"{line.span.first} to {line.span.last}", f"{line.jobs:,}",
         *(f"{line.hours[unit]:,.4f}" for unit in units))
        for line in used
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = [cell.ljust(w) if n < 3 else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(cells).rstrip()
        if row is head:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))
    yield ""
    if open_:
        may = ", ".join(f"{hours:,.4f} {_head(unit, machine)}" for unit, hours in totals(open_, machine).items())
        yield f"Not ended    {len(open_)} jobs, which may use {may}"
    yield from (f"Left         {one.said()}" for one in left)
    yield from (f"Left         {text}" for text in unknown)
    yield "Counted      jobs of this folder alone, as their scripts noted it; each in the period in which it ended"


def _head(unit: Unit, machine: Machine) -> str:
    return machine.prices.currency if unit == "points" and machine.prices is not None else WORDS[unit]
