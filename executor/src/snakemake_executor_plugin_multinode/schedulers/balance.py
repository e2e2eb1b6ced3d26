"""What is left of the computing time that a project was granted, as far as a batch system tells.

Slurm knows limits in minutes of each trackable resource: `GrpTRESMins` of an account or a user in it, which sshare shows
with what has been used, and of a QOS. PBS and Grid Engine have no such account of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from snakemake_executor_plugin_multinode.schedulers.accounts import project_of, value_of
from snakemake_executor_plugin_multinode.schedulers.command import NoAnswer
from snakemake_executor_plugin_multinode.schedulers.scheduler import Scheduler

UNITS: Mapping[str, str] = {"gres/gpu": "GPU h", "node": "node h", "cpu": "core h", "billing": "billing h"}
"""Trackable resources (slurm.conf(5), AccountingStorageTRES) that computing time is granted in, and their hours."""
QOS_LIMITS = re.compile(r"\bGrpTRESMins=(\S+)")
QOS_RESOURCE = re.compile(r"([a-z/]+)=(N|\d+)\((\d+)\)")
"""`gres/gpu=6000(12)`: the limit, N for none, and what has been used of it, minutes (scontrol(1), show assoc_mgr)."""


@dataclass(frozen=True)
class Balance:
    """One limit, what was used of it by all whom it is for, and what their running jobs may still use; hours of `unit`."""

    project: str
    whose: str
    """`account lab`, `user ada in account lab`, `QOS fast`."""
    unit: str
    granted_h: float
    used_h: float
    running_h: float
    asked: str
    """The command that told."""

    @property
    def left_h(self) -> float:
        """Neither used nor promised to jobs that run; not below 0."""
        return max(0.0, self.granted_h - self.used_h - self.running_h)


def balances(scheduler: Scheduler) -> list[Balance]:
    """What the scheduler knows of the site's project; none where no limit is set. NoAnswer where it cannot tell."""
    if scheduler.kind != "slurm":
        raise NoAnswer(f"{scheduler.kind} keeps no account of granted time")
    project = project_of(scheduler.settings)
    return [*_of_accounts(scheduler, project), *_of_qos(scheduler, project)]


def _of_accounts(scheduler: Scheduler, project: str | None) -> Iterator[Balance]:
    """sshare, a line for each account and user: `lab|ada|gres/gpu=6000|cpu=12,gres/gpu=4|gres/gpu=0`."""
    command = ["sshare", "-n", "-P", *(["-A", project] if project else [])]
    answer = scheduler.run([*command, "-o", "Account,User,GrpTRESMins,GrpTRESRaw,TRESRunMins"], scheduler.query_s)
    if answer.code != 0:
        raise NoAnswer(f"sshare: {answer.words}")
    for line in answer.out.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5:
            continue
        account, user, *resources = cells
        limits, used, running = map(_minutes, resources)
        whose = f"user {user} in account {account}" if user else f"account {account}"
        for name in limits:
            if name in UNITS:
                yield Balance(
                    account, whose, UNITS[name], limits[name] / 60, used.get(name, 0.0) / 60,
                    running.get(name, 0.0) / 60, "sshare",
                )  # fmt: skip


def _minutes(text: str) -> dict[str, float]:
    """`cpu=12,gres/gpu=4` by name."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: float(value) for name, _, value in pairs if value.replace(".", "", 1).isdigit()}


def _of_qos(scheduler: Scheduler, project: str | None) -> Iterator[Balance]:
    """The limits of the QOS that the submit line names, which scontrol shows with what has been used."""
    options = scheduler.settings.options
    qos = value_of(options, "--qos") or value_of(options, "-q")
    if qos is None:
        return
    command = ["scontrol", "-o", "show", "assoc_mgr", f"qos={qos}", "flags=qos"]
    answer = scheduler.run(command, scheduler.query_s)
    if answer.code != 0:
        raise NoAnswer(f"scontrol show assoc_mgr: {answer.words}")
    limits = QOS_LIMITS.search(answer.out)
    for name, limit, used in QOS_RESOURCE.findall(limits[1] if limits else ""):
        if limit != "N" and name in UNITS:
            yield Balance(
                project or "",
                f"QOS {qos}",
                UNITS[name],
                int(limit) / 60,
                int(used) / 60,
                0.0,
                "scontrol show assoc_mgr",
            )
