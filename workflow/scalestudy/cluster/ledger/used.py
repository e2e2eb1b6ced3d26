"""What jobs have used: from the executor's ledger, and from the scheduler's accounting where there is one."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.files import json_lines

LEDGER = Path(".scalestudy/jobs.jsonl")
RUN = re.compile(r"[A-Za-z0-9_.]+-[0-9a-f]{12}(?![0-9A-Za-z])")
QUERY_S = 60.0
MOST_IDS = 200


@dataclass(frozen=True)
class LedgerAttempt:
    """One job of a run, as the executor recorded it."""

    name: str
    run: str
    id: str | None
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
    """The jobs that executors submitted from this folder, oldest first."""
    events: dict[str, dict[str, object]] = {}
    for event in ledger_events(file):
        events.setdefault(event["name"], {}).update({k: v for k, v in event.items() if v is not None})
    return [attempt for name, event in events.items() if (attempt := _attempt(name, event)) is not None]


def _attempt(name: str, event: Mapping[str, object]) -> LedgerAttempt | None:
    label = str(event.get("job", ""))
    words = label.split()
    rule = words[0] if words else ""
    found = RUN.search(label)
    if found is None:
        return None
    hours = event.get("gpu_hours")
    used, gpus, nodes, number = (event.get(key) for key in ("used_s", "gpus", "nodes", "link"))
    return LedgerAttempt(
        name,
        found[0] if found else "",
        str(event["id"]) if event.get("id") else None,
        gpus if isinstance(gpus, int) else 0,
        nodes if isinstance(nodes, int) else 1,
        float(used) if isinstance(used, (int, float)) else None,
        number if isinstance(number, int) else 1,
        rule,
        float(hours) if isinstance(hours, (int, float)) else 0.0,
        words[1] if rule == "train" and len(words) == 3 else "",
    )


def last_causes(file: Path = LEDGER) -> dict[str, str]:
    """By run, why its last job ended, in the executor's words."""
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

    `wall_s` has what each run itself took, oldest first. A run with more jobs than
    results, such as a chain, is left out.
    """
    by_run: dict[str, list[float]] = defaultdict(list)
    for attempt in attempts:
        if attempt.used_s is not None:
            by_run[attempt.run].append(attempt.used_s)
    outside = [
        job_s - run_s
        for run, used in by_run.items()
        if len(used) == len(wall_s.get(run, ()))
        for job_s, run_s in zip(used, wall_s[run], strict=True)
    ]
    outside = sorted(seconds for seconds in outside if seconds >= 0)
    if len(outside) < 3:
        return None
    cuts = statistics.quantiles(outside, n=10, method="inclusive")
    return cuts[0], cuts[-1]


def accounted(kind: str, ids: Sequence[str]) -> dict[str, float]:
    """Wall-clock seconds of jobs by id, as the scheduler's accounting has them; jobs that it does not know are absent."""
    found: dict[str, float] = {}
    for begin in range(0, len(ids), MOST_IDS):
        found |= ACCOUNTING[kind](ids[begin : begin + MOST_IDS])
    return found


def _slurm(ids: Sequence[str]) -> dict[str, float]:
    """sacct, one line a job: `12|75`."""
    answer = _answer(["sacct", "-X", "-n", "-P", "-j", ",".join(ids), "-o", "jobid,elapsedraw"])
    rows = [line.split("|") for line in answer.splitlines()]
    return {row[0]: float(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _pbs(ids: Sequence[str]) -> dict[str, float]:
    """qstat with history, one line a job: `Job Id: 38.head|…|resources_used.walltime=00:01:15|…`."""
    found = {}
    for line in _answer(["qstat", "-x", "-f", "-F", "dsv", *ids]).splitlines():
        values = dict(part.split("=", 1) for part in line.split("|") if "=" in part)
        name = re.match(r"Job Id: ([^|]+)", line)
        clock = values.get("resources_used.walltime", "")
        if name and re.fullmatch(r"\d+:\d\d:\d\d", clock):
            hours, minutes, seconds = map(int, clock.split(":"))
            found[name[1].strip()] = 3600.0 * hours + 60 * minutes + seconds
    return found


def _sge(ids: Sequence[str]) -> dict[str, float]:
    """qacct, one job after the other; of a job that ran several times the last record counts."""
    found = {}
    for job in ids:
        clocks = re.findall(r"^ru_wallclock +([0-9.]+)", _answer(["qacct", "-j", job]), re.MULTILINE)
        if clocks:
            found[job] = float(clocks[-1])
    return found


ACCOUNTING = {"slurm": _slurm, "pbs": _pbs, "sge": _sge}


def _answer(command: Sequence[str]) -> str:
    """What a command prints; empty where it is missing, fails or is too slow: accounting is optional."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
