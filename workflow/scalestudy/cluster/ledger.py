"""Jobs submitted from this folder, by the executor's ledger: the time and the cause of their ends."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.files import json_lines

LEDGER = Path(".scalestudy/jobs.jsonl")
RUN = re.compile(r"[A-Za-z0-9_.]+-[0-9a-f]{12}(?![0-9A-Za-z])")
MIN_JOBS = 3
"""Fewer jobs say nothing about the next one."""


@dataclass(frozen=True)
class LedgerAttempt:
    """One job of a run or of a dataset, as the executor recorded it."""

    run: str
    used_s: float | None = None
    """None while it has not ended."""
    machine: str = ""
    """The folder of results that its run belongs to: the same run on two machines is two runs. Empty for other jobs."""
    cause: str | None = None
    """Cause of its end, in the executor's words."""
    rule: str = "train"


def read_ledger(file: Path = LEDGER) -> list[LedgerAttempt]:
    """The jobs of runs and datasets that executors submitted from this folder, oldest first."""
    jobs: dict[str, dict[str, Any]] = {}
    for event in json_lines(file):
        known = {key: value for key, value in event.items() if value is not None}
        jobs.setdefault(event.get("name", ""), {}).update(known)
    found = []
    for job in jobs.values():
        label = str(job.get("job", ""))
        if (run := RUN.search(label)) is None:
            continue
        rule, *words = label.split()
        rule = rule.rpartition("_")[2]  # a module may put a name before it
        machine = words[0] if rule == "train" and len(words) == 2 else ""
        found.append(LedgerAttempt(run[0], job.get("used_s"), machine, job.get("cause"), rule))
    return found


def start_up(wall_s: Mapping[str, Sequence[float]], attempts: Iterable[LedgerAttempt]) -> tuple[float, float] | None:
    """Seconds of earlier jobs outside their runs: the 10th and 90th percentile; None with fewer than three jobs.

    `wall_s` has each run's own seconds, oldest first. A run with more jobs than results, such as a chain, is left out.
    """
    by_run: dict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        if attempt.used_s is not None:
            by_run[attempt.run].append(attempt.used_s)
    outside = [
        job_s - run_s
        for run, used in by_run.items()
        if len(used) == len(own := wall_s.get(run, ()))
        for job_s, run_s in zip(used, own, strict=True)
        if job_s >= run_s
    ]
    return outer_deciles(outside)


def outer_deciles(values: Sequence[float]) -> tuple[float, float] | None:
    """The 10th and the 90th percentile; None of fewer than three values."""
    if len(values) < MIN_JOBS:
        return None
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], cuts[-1]
