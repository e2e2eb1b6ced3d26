"""What is known beside a plan: the day, what is left of grants, and when the scheduler would start its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from scalestudy.cluster.ledger.left import LeftOfGrant, accounting_of_site, left_by_asking, left_by_file
from scalestudy.cluster.ledger.spent import read_jobs
from scalestudy.cluster.plan.asked_starts import AskedStart, ask_starts
from scalestudy.cluster.plan.planned import Plan
from scalestudy.cluster.plan.show import ASKED, asked


@dataclass(frozen=True)
class Known:
    """What stands beside a plan."""

    today: date
    left: Sequence[LeftOfGrant] = ()
    starts: Sequence[AskedStart] = ()
    not_told: Sequence[str] = ()
    """Sentences about what could not be found out."""


def known(plan: Plan, today: date, *, ask: bool) -> Known:
    """Grants of the site file, and with `ask` what the scheduler answers. UserError where it cannot be asked at all."""
    accounting = accounting_of_site()
    left = left_by_file(accounting, read_jobs(today=today), plan.machine, today) if accounting.allocations else []
    if not ask:
        return Known(today, left)
    starts = ask_starts(plan)
    told, not_told = left_by_asking(accounting, plan.machine)
    return Known(today, [*told, *left], starts, not_told)


def remarks(known: Known) -> Iterator[str]:
    """Lines below the table of a plan."""
    yield from (f"Left         {one.said()}" for one in known.left)
    yield from (f"Left         {text}" for text in known.not_told)
    yield from (f"Starts       {line}" for line in asked(known.starts))
    if known.starts:
        yield f"             {ASKED}"
