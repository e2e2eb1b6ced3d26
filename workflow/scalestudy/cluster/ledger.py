"""Jobs submitted from this folder, by the executor's ledger: hours used, waits in the queue, and plan against actual."""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.errors import UserError
from scalestudy.files import canonical_json, json_lines
from scalestudy.results.stored import read_result
from scalestudy.spec.layout import RESULTS
from scalestudy.spec.study import Study

if TYPE_CHECKING:
    from scalestudy.cluster.plan.expected import TimeEstimate
    from scalestudy.cluster.resources import Resources

LEDGER = Path(".scalestudy/jobs.jsonl")
RUN = re.compile(r"[A-Za-z0-9_.]+-[0-9a-f]{12}(?![0-9A-Za-z])")
MIN_JOBS = 3
"""Fewer jobs say nothing about the next one."""


@dataclass(frozen=True)
class LedgerAttempt:
    """One job of a run or of a dataset, as the executor recorded it."""

    run: str
    gpus: int = 0
    nodes: int = 1
    used_s: float | None = None
    """None while it has not ended."""
    number: int = 1
    """Its place in the chain, from 1."""
    rule: str = "train"
    gpu_hours: float = 0.0
    """Used, or requested while it has not ended; idle GPUs of its nodes count."""
    machine: str = ""
    """The folder of results that its run belongs to: the same run on two machines is two runs. Empty for other jobs."""
    queue: str = ""
    wait_s: float | None = None
    """From its submission to the start of its script; None for a script that has not started."""
    cause: str | None = None
    """Cause of its end, in the executor's words."""


def read_ledger(file: Path = LEDGER) -> list[LedgerAttempt]:
    """The jobs of runs and datasets that executors submitted from this folder, oldest first."""
    jobs: dict[str, dict[str, Any]] = {}
    for event in json_lines(file):
        if event.get("event") in ("submitted", "id"):  # a job that a limit keeps out waits from when it has an id
            event["since_s"] = event.get("time_s")
        known = {key: value for key, value in event.items() if value is not None}
        jobs.setdefault(event.get("name", ""), {}).update(known)
    found = []
    for job in jobs.values():
        label = str(job.get("job", ""))
        if (run := RUN.search(label)) is None:
            continue
        rule, *words = label.split()
        wait_s = max(0.0, job["began_s"] - job["since_s"]) if {"began_s", "since_s"} <= job.keys() else None
        machine = words[0] if rule == "train" and len(words) == 2 else ""
        found.append(
            LedgerAttempt(run[0], job.get("gpus", 0), job.get("nodes", 1), job.get("used_s"), job.get("link", 1), rule,
                          job.get("gpu_hours", 0.0), machine, job.get("queue", ""), wait_s, job.get("cause"))
        )  # fmt: skip
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


@dataclass(frozen=True)
class Waited:
    """Waits of jobs like a planned one, and which jobs these are: `jobs of 2 to 3 nodes in gpu`."""

    median_s: float
    p90_s: float
    jobs: int
    like: str


class Waits:
    """Queue waits of earlier jobs; `default_queue` is that of jobs that name none."""

    def __init__(self, attempts: Iterable[LedgerAttempt] = (), default_queue: str = "") -> None:
        self.seen = [(one.queue, one.nodes.bit_length(), one.wait_s) for one in attempts if one.wait_s is not None]
        self.default_queue = default_queue
        self._look = functools.cache(self._like)

    def of(self, queue: str | None, nodes: int) -> Waited | None:
        """Waits of at least three jobs: of this queue and about this size, else of this queue, else of all; None where
        there are fewer. About the same size: from one power of two to the next."""
        return self._look(queue or self.default_queue, nodes.bit_length())

    def _like(self, queue: str, bits: int) -> Waited | None:
        size = "1 node" if bits == 1 else f"{2 ** (bits - 1)} to {2**bits - 1} nodes"
        place = f" in {queue}" if queue else ""
        for like, seconds in (
            (f"jobs of {size}{place}", [wait for where, of, wait in self.seen if (where, of) == (queue, bits)]),
            (f"jobs of all sizes{place}", [wait for where, _, wait in self.seen if where == queue]),
            ("all jobs", [wait for _, _, wait in self.seen]),
        ):
            if (ends := outer_deciles(seconds)) is not None:
                return Waited(statistics.median(seconds), ends[1], len(seconds), like)
        return None


def plans_file(machine: str) -> Path:
    """Plans of each run before its job was submitted; append-only."""
    return RESULTS / machine / "plans.jsonl"


def note_plan(machine: str, run: str, asked: Resources, estimate: TimeEstimate) -> None:
    """Keep the plan of a run before its job is submitted or started."""
    line = {
        "run": run, "time_s": round(time.time(), 1), "nodes": asked.nodes, "gpus": asked.gpus_held,
        "requested_s": asked.requested_s, "low_s": round(estimate.low_s, 1),
        "high_s": round(estimate.high_s, 1) if estimate.known else None, "kind": estimate.kind,
    }  # fmt: skip
    file = plans_file(machine)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as stream:
        stream.write(canonical_json(line) + "\n")


Row = dict[str, Any]
"""One finished run: seconds that its jobs reserved, were expected to take, and took."""


def compare(studies: Iterable[Study], machine: str) -> tuple[list[Row], list[str]]:
    """Every run of the studies that has a result and was planned; and the names of those that have a result alone."""
    plans = {str(entry.get("run")): entry for entry in json_lines(plans_file(machine))}
    attempts: dict[str, list[LedgerAttempt]] = defaultdict(list)
    for attempt in read_ledger():
        if attempt.machine == machine:
            attempts[attempt.run].append(attempt)
    rows: dict[str, Row] = {}
    unplanned: dict[str, None] = {}
    for name, run in ((study.name, run) for study in studies for run in study.runs if run.id not in rows):
        result = read_result(machine, run)
        if result is None or not result.get("ended"):
            continue
        if (plan := plans.get(run.id)) is None:
            unplanned[run.id] = None
            continue
        kept = {key: plan[key] for key in ("gpus", "nodes", "low_s", "high_s", "kind")}
        used = _used(result, attempts[run.id])
        rows[run.id] = {"study": name, "run": run.id, "reserved_s": plan["requested_s"], **kept, **used}
    return list(rows.values()), list(unplanned)


def _used(result: Mapping[str, Any], attempts: Sequence[LedgerAttempt]) -> Row:
    """Seconds over all attempts that led to the run's result, their number, and the source of the seconds: the `job
    script`, or the `result` itself; and the seconds of attempts that did not: cancelled, failed, or made before it was
    forgotten."""
    began = [attempt for attempt in attempts if attempt.used_s is None or attempt.used_s > 0]
    first = len(began)  # of the chain that led to the result
    # A last attempt without an end: its driver died before it could note it, and the ledger has only older ones.
    if began and began[-1].used_s is not None:
        first -= 1
        while first and began[first].number > 1 and began[first - 1].number < began[first].number:
            first -= 1
    seconds = [attempt.used_s or 0.0 for attempt in began]
    lost_s, count, source = sum(seconds[:first]), len(began) - first, "job script"
    used_s = sum(seconds[first:])
    if not count:
        took = datetime.fromisoformat(result["ended"]) - datetime.fromisoformat(result["started"])
        wall_s = result["metrics"].get("wall_s")
        used_s, count, source = (took.total_seconds() if wall_s is None else float(wall_s)), 1, "result"
    return {"used_s": used_s, "attempts": count, "source": source, "lost_s": lost_s}


def show_actual(targets: Sequence[str], studies: Sequence[Study], machine: str) -> tuple[str, dict[str, Any]]:
    """The comparison for people and as plain data; `targets` are studies, none: all. UserError where there is none."""
    chosen = [study for study in studies if not targets or study.name in targets or "all" in targets]
    rows, unplanned = compare(chosen, machine)
    if not rows:
        what = "no finished run has a plan: the driver notes one for each run that it starts"
        raise UserError(what, str(plans_file(machine)), "run the studies, then run the command again")
    unit, word = ("gpus", "GPU hours") if any(row["gpus"] for row in rows) else ("nodes", "node hours")
    total = {
        name: round(sum((row[f"{name}_s"] or 0.0) * row[unit] for row in rows) / 3600, 4)
        for name in ("reserved", "low", "high", "used", "lost")
    }
    inside: dict[str, dict[str, int]] = {}
    lines = [
        f"{'study':20}  {'reserved':>11}  {'expected':>19}  {'used':>9}  {'expected from':13}  {'used from':10}  run"
    ]
    for row in rows:
        low_s, high_s, kind = row["low_s"], row["high_s"], row["kind"]
        counts = inside.setdefault(kind, {"runs": 0, "inside": 0})
        counts["runs"] += 1
        counts["inside"] += high_s is not None and low_s <= row["used_s"] <= high_s
        span = f"{low_s:,.0f} – {'?' if high_s is None else f'{high_s:,.0f}'}"
        times = f"{row['reserved_s']:>9,} s  {span:>17} s  {row['used_s']:>7,.0f} s"
        lines.append(f"{row['study']:20}  {times}  {kind:13}  {row['source']:10}  {row['run']}")
    others = round(sum(attempt.gpu_hours for attempt in read_ledger() if attempt.rule != "train"), 4)
    lines.append(
        f"{len(rows)} runs, in {word}: {total['reserved']:,} reserved, {total['low']:,} to {total['high']:,} expected, "
        f"{total['used']:,} used; {total['lost']:,} more by jobs without a result, {others:,} GPU hours by those of data."
    )
    lines += [
        f"Expected from {kind}: {counts['inside']} of {counts['runs']} runs fell within their P5 to P95 interval, "
        "which should hold 90 %."
        for kind, counts in inside.items()
        if kind != "unknown"
    ]
    if unplanned:
        lines.append(f"{len(unplanned)} runs have a result and no plan: no driver of this folder made them.")
    return "\n".join(lines), {
        "unit": word,
        "total": {"runs": len(rows), **total},
        "inside_by_kind": inside,
        "without_plan": unplanned,
        "other_jobs": {"gpu_hours": others},
        "runs": rows,
    }
