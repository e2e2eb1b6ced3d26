"""What this folder's jobs have used, by project and period, from the executor's ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from scalestudy.cluster.ledger.used import LEDGER, ledger_events
from scalestudy.cluster.plan.planned import Booked, charged
from scalestudy.spec.accounting import MONTHS, Accounting, Unit
from scalestudy.spec.machine import Machine

NOT_SAID = "(not recorded)"
"""The project of jobs whose submit line named none, or which an earlier version submitted."""


@dataclass(frozen=True)
class LedgerJob:
    """One submission of the ledger."""

    project: str
    queue: str
    nodes: int
    gpus: int
    cpus: int
    requested_s: float
    used_s: float | None
    """None while it has not ended: then it may use what it requested."""
    day: date
    """The local day on which it ended, else today: a job is booked as a whole on the day of its end."""

    def hours(self, unit: Unit, machine: Machine) -> float:
        """Used, or what it may still use, in hours or in the points of the machine's prices."""
        seconds = self.requested_s if self.used_s is None else self.used_s
        if unit == "points":
            if machine.prices is None or not seconds:
                return 0.0
            booked = Booked(self.queue or None, self.nodes, self.gpus, self.cpus, self.requested_s)
            return float(charged(machine, booked, seconds))
        return seconds * {"gpu_hours": self.gpus, "node_hours": self.nodes, "cpu_hours": self.cpus}[unit] / 3600


@dataclass(frozen=True)
class Span:
    """One period of the site."""

    name: str
    first: date
    last: date


def read_jobs(file: Path = LEDGER, today: date | None = None) -> list[LedgerJob]:
    """The submissions of this folder; those that a scheduler did not take have used nothing."""
    begun: dict[str, dict[str, Any]] = {}
    ends: dict[str, dict[str, Any]] = {}
    for event in ledger_events(file):
        if event.get("event") == "submitted":
            begun[event["name"]] = event
        elif event.get("event") == "ended":
            ends[event["name"]] = event
    return [_job(event, ends.get(name), today or date.today()) for name, event in begun.items()]


def _job(event: Mapping[str, Any], end: Mapping[str, Any] | None, today: date) -> LedgerJob:
    used_s = None if end is None else _number(end.get("used_s"))
    ended = today if end is None else date.fromtimestamp(_number(end.get("time_s")) or time.time())
    return LedgerJob(
        str(event.get("project") or NOT_SAID),
        str(event.get("queue") or ""),
        int(_number(event.get("nodes"))),
        int(_number(event.get("gpus"))),
        int(_number(event.get("cpus"))),
        60 * _number(event.get("runtime_min")),
        used_s,
        ended,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def span_of(day: date, accounting: Accounting) -> Span:
    """The period that a day lies in: `2026 Q4`, or `FY2026 Q3` where the site's year does not begin in January."""
    months = MONTHS[accounting.period]
    since = (day.month - accounting.year_begins) % 12
    year = day.year if day.month >= accounting.year_begins else day.year - 1
    begin = accounting.year_begins - 1 + since - since % months
    first = date(year + begin // 12, begin % 12 + 1, 1)
    begin += months
    last = date(year + begin // 12, begin % 12 + 1, 1) - timedelta(days=1)
    named = f"{year}" if accounting.year_begins == 1 else f"FY{year}"
    part = since // months + 1
    name = {"month": f"{first:%Y-%m}", "quarter": f"{named} Q{part}", "half_year": f"{named} H{part}", "year": named}
    return Span(name[accounting.period], first, last)


@dataclass(frozen=True)
class SpentLine:
    """The jobs of one project that ended in one period."""

    project: str
    span: Span
    jobs: int
    hours: Mapping[Unit, float]


def lines(jobs: Iterable[LedgerJob], accounting: Accounting, machine: Machine) -> list[SpentLine]:
    """What ended, by project and period, oldest first."""
    groups: dict[tuple[str, Span], list[LedgerJob]] = {}
    for job in jobs:
        if job.used_s:
            groups.setdefault((job.project, span_of(job.day, accounting)), []).append(job)
    keys = sorted(groups, key=lambda key: (key[0], key[1].first))
    return [SpentLine(*key, len(groups[key]), totals(groups[key], machine)) for key in keys]


def totals(jobs: Sequence[LedgerJob], machine: Machine) -> dict[Unit, float]:
    """Hours of each unit, and points where the machine has prices."""
    units: list[Unit] = ["gpu_hours", "node_hours", "cpu_hours"]
    units += ["points"] if machine.prices is not None else []
    return {unit: sum(job.hours(unit, machine) for job in jobs) for unit in units}


def used_between(jobs: Iterable[LedgerJob], project: str, unit: Unit, first: str, last: str, machine: Machine) -> float:
    """What a project's jobs of this folder used on these days, with what those that have not ended may still use."""
    found = [job for job in jobs if job.project == project and first <= job.day.isoformat() <= last]
    return sum(job.hours(unit, machine) for job in found)
