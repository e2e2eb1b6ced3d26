"""How a site accounts for computing time: its periods, what it granted, and how one asks what is left."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from scalestudy.spec.base import Spec, refused

Unit = Literal["gpu_hours", "node_hours", "cpu_hours", "points"]
UNITS = get_args(Unit)
Period = Literal["month", "quarter", "half_year", "year"]
MONTHS: dict[str, int] = {"month": 1, "quarter": 3, "half_year": 6, "year": 12}


def _day(text: str) -> str:
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text) is None:
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise refused(f"`{text[:40]}` is not a date", "write it as 2026-10-01") from None
    return text


def _pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise refused(f"`{text[:40]}` is not a valid regular expression: {error}") from None
    if groups != 1:
        raise refused(
            f"`{text[:40]}` has {groups} groups", "put brackets around the number, and no others: `left: ([0-9.]+)`"
        )
    return text


Day = Annotated[str, AfterValidator(_day)]
"""A day as ISO 8601 writes it."""


class Grant(Spec):
    """Computing time that a project was granted."""

    project: Annotated[str, Field(min_length=1)]
    """The project, as `scheduler.account` or the options of the submit line name it."""
    amount: Annotated[float, Field(gt=0)]
    """How much was granted, in `unit`."""
    unit: Unit = "gpu_hours"
    """What is granted: `gpu_hours`, `node_hours`, `cpu_hours`, or `points`, the currency of the machine's prices."""
    first_day: Day
    """First day of the grant, such as 2026-10-01."""
    last_day: Day
    """Last day of the grant."""

    @model_validator(mode="after")
    def _in_order(self) -> Grant:
        if self.last_day < self.first_day:
            raise refused(f"it ends on {self.last_day}, before it begins", "exchange the days", "last_day")
        return self


class LeftCommand(Spec):
    """The site's own command for what is left of a project's time."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """Its words, such as `[show_quota, -p, lab]`."""
    pattern: Annotated[str, AfterValidator(_pattern)]
    """Regular expression whose one group is the number in what the command prints; commas in it count as nothing."""
    unit: Unit = "gpu_hours"
    """What the number counts."""


class Accounting(Spec):
    """Periods, grants, and what tells what is left of them."""

    period: Period = "quarter"
    """What the ledger sums over: `month`, `quarter`, `half_year` or `year`."""
    year_begins: Annotated[int, Field(ge=1, le=12)] = 1
    """Month in which the site's year begins: 4 for April."""
    allocations: tuple[Grant, ...] = ()
    """What was granted, where the scheduler does not know it."""
    left: LeftCommand | None = None
    """Unset: Slurm is asked (sshare), other systems have no such command."""
