"""Jobs submitted from this folder, as the executor's ledger has them: their use, and their wait in the queue."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    name: str
    run: str
    gpus: int
    nodes: int
    used_s: float | None
    """None while it has not ended."""
    number: int = 1
    """Its place in the chain, from 1."""
    rule: str = "train"
    gpu_hours: float = 0.0
    """Used, or asked for while it has not ended; idle GPUs of its nodes count."""
    machine: str = ""
    """The folder of results that its run belongs to: the same run on two machines is two runs. Empty for other jobs."""


def ledger_events(file: Path = LEDGER) -> Iterator[dict[str, Any]]:
    """The lines that executors wrote about jobs submitted from this folder, oldest first; each names its job."""
    return (event for event in json_lines(file) if isinstance(event.get("name"), str))


def read_ledger(file: Path = LEDGER) -> list[LedgerAttempt]:
    """The jobs of runs and datasets that executors submitted from this folder, oldest first."""
    events: dict[str, dict[str, Any]] = {}
    for event in ledger_events(file):
        events.setdefault(event["name"], {}).update({k: v for k, v in event.items() if v is not None})
    found = []
    for name, event in events.items():
        label = str(event.get("job", ""))
        if (run := RUN.search(label)) is None:
            continue
        rule, *words = label.split()
        machine = words[0] if rule == "train" and len(words) == 2 else ""
        used, gpus, nodes, link = (number(event.get(key)) for key in ("used_s", "gpus", "nodes", "link"))
        found.append(
            LedgerAttempt(name, run[0], int(gpus or 0), int(nodes or 1), used, int(link or 1), rule,
                          number(event.get("gpu_hours")) or 0.0, machine)
        )  # fmt: skip
    return found


def number(value: object) -> float | None:
    """A finite number; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e18 else None


def last_causes(file: Path = LEDGER) -> dict[str, str]:
    """By run, the cause of its last job's end, in the executor's words."""
    runs: dict[str, str] = {}
    causes = {}
    for event in ledger_events(file):
        kind, name = event.get("event"), event["name"]
        if kind == "submitted" and (found := RUN.search(str(event.get("job", "")))):
            runs[name] = found[0]
        elif kind == "ended" and name in runs:
            causes[runs[name]] = str(event.get("cause") or "")
    return causes


def start_up(wall_s: Mapping[str, Sequence[float]], attempts: Iterable[LedgerAttempt]) -> tuple[float, float] | None:
    """Seconds of earlier jobs outside their runs: the 10th and 90th percentile; None with fewer than three jobs.

    `wall_s` has each run's own seconds, oldest first. A run with more jobs than results, such as a chain, is left out.
    """
    by_run: dict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        if attempt.used_s is not None:
            by_run[attempt.run].append(attempt.used_s)
    pairs = (
        pair
        for run, used in by_run.items()
        if len(used) == len(own := wall_s.get(run, ()))
        for pair in zip(used, own, strict=True)
    )
    outside = [job_s - run_s for job_s, run_s in pairs if job_s >= run_s]
    if len(outside) < MIN_JOBS:
        return None
    cuts = statistics.quantiles(outside, n=10, method="inclusive")
    return cuts[0], cuts[-1]
