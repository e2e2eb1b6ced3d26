"""What is left of the computing time that a project was granted: by the scheduler, by the site's command, by the site file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from scalestudy.cluster.ledger.spent import LedgerJob, used_between
from scalestudy.cluster.submit import scheduler_of_site
from scalestudy.errors import UserError
from scalestudy.site_fault import site_file
from scalestudy.spec.accounting import Accounting, LeftCommand, Unit
from scalestudy.spec.config import read_site
from scalestudy.spec.machine import Machine

WORDS: dict[Unit, str] = {"gpu_hours": "GPU h", "node_hours": "node h", "cpu_hours": "core h", "points": "points"}
COMMAND_S = 60.0


@dataclass(frozen=True)
class LeftOfGrant:
    """What one source says is left of one grant."""

    project: str
    unit: str
    left: float
    granted: float | None
    """None where the source tells only what is left."""
    until: str
    """Last day; empty where the source does not tell."""
    source: str

    def said(self) -> str:
        """`lab: 4,200 of 5,000 GPU h until 2026-12-31 (source)`."""
        of = "" if self.granted is None else f" of {self.granted:,.6g}"
        until = f" until {self.until}" if self.until else ""
        project = f"{self.project}: " if self.project else ""
        return f"{project}{self.left:,.6g}{of} {self.unit}{until} ({self.source})"


def left_by_file(accounting: Accounting, jobs: Sequence[LedgerJob], machine: Machine, today: date) -> list[LeftOfGrant]:
    """Of each grant of the site file that holds today, what this folder's jobs have not used."""
    found = []
    for grant in accounting.allocations:
        if not grant.first_day <= today.isoformat() <= grant.last_day:
            continue
        used = used_between(jobs, grant.project, grant.unit, grant.first_day, grant.last_day, machine)
        unit = _unit(grant.unit, machine)
        source = f"site file, less the {used:,.6g} of this folder's jobs; others may have used more"
        left = max(0.0, grant.amount - used)
        found.append(LeftOfGrant(grant.project, unit, left, grant.amount, grant.last_day, source))
    return found


def left_by_asking(accounting: Accounting, machine: Machine) -> tuple[list[LeftOfGrant], list[str]]:
    """What the site's command or the scheduler says, and sentences about what could not be told."""
    try:
        if accounting.left is not None:
            return [_by_command(accounting.left, machine)], []
        return list(_by_scheduler()), []
    except UserError as error:
        return [], [f"not known: {error.what}"]


def _by_command(told: LeftCommand, machine: Machine) -> LeftOfGrant:
    from snakemake_executor_plugin_multinode.schedulers import NoAnswer
    from snakemake_executor_plugin_multinode.schedulers.command import run_command

    name, where = told.command[0], f"{site_file()}: accounting.left"
    try:
        answer = run_command(told.command, COMMAND_S)
    except NoAnswer as error:
        raise UserError(f"{error}", where, "write the command as it works in a terminal") from None
    if answer.code != 0:
        raise UserError(f"{name} ended with status {answer.code}: {answer.words}", where, "try it in a terminal")
    found = re.search(told.pattern, answer.out, re.MULTILINE)
    if found is None:
        raise UserError(
            f"`{told.pattern}` is not in what {name} prints: {answer.words[:120]}", where, "correct the pattern"
        )
    try:
        number = float((found[1] or "").replace(",", ""))
    except ValueError:
        raise UserError(
            f"`{found[1]}` is not a number, in the output of {name}", where, "correct the pattern"
        ) from None
    return LeftOfGrant("", _unit(told.unit, machine), number, None, "", f"says {name}")


def _by_scheduler() -> Iterator[LeftOfGrant]:
    from snakemake_executor_plugin_multinode.schedulers import NoAnswer
    from snakemake_executor_plugin_multinode.schedulers.balance import balances

    scheduler = scheduler_of_site()
    if scheduler is None:
        raise UserError("the profile names no scheduler", f"{site_file()}: scheduler", "name one")
    try:
        found = balances(scheduler)
    except NoAnswer as error:
        raise UserError(
            f"{error}: name the site's own command as `accounting.left` in {site_file()}, or the grants as `accounting.allocations`"
        ) from None
    if not found:
        raise UserError("the scheduler has no limit of this project", "scheduler", "ask the site")
    for one in found:
        running = f", {one.running_h:,.6g} of it promised to running jobs" if one.running_h else ""
        source = f"says {one.asked} of {one.whose}: {one.used_h:,.6g} used by all{running}"
        yield LeftOfGrant(one.project, one.unit, one.left_h, one.granted_h, "", source)


def _unit(unit: Unit, machine: Machine) -> str:
    return machine.prices.currency if unit == "points" and machine.prices is not None else WORDS[unit]


def accounting_of_site() -> Accounting:
    """That of the profile's site file."""
    return read_site().accounting
