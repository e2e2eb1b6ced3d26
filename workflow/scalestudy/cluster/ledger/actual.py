"""Plan against actual: the expectation of each run before its job was submitted, and its jobs' use."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scalestudy.cluster.ledger.used import LedgerAttempt, read_ledger
from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import Resources
from scalestudy.errors import UserError
from scalestudy.files import canonical_json, json_lines, plain_file
from scalestudy.results.stored import read_result
from scalestudy.spec.layout import RESULTS
from scalestudy.spec.study import Study


def plans_file(machine: str) -> Path:
    """Plans of each run before its job was submitted; append-only."""
    return RESULTS / machine / "plans.jsonl"


def note_plan(machine: str, run: str, asked: Resources, estimate: TimeEstimate) -> None:
    """Keep the plan of a run before its job is submitted or started."""
    high = round(estimate.high_s, 1) if estimate.known else None
    line = {
        "run": run, "time_s": round(time.time(), 1), "nodes": asked.nodes, "gpus": asked.gpus_held,
        "requested_s": asked.requested_s, "low_s": round(estimate.low_s, 1), "high_s": high, "kind": estimate.kind,
    }  # fmt: skip
    file = plans_file(machine)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8", opener=plain_file) as stream:
        stream.write(canonical_json(line) + "\n")


@dataclass(frozen=True)
class PlannedAndUsed:
    """One finished run: seconds that its jobs reserved, were expected to take, and took."""

    study: str
    run: str
    gpus: int
    nodes: int
    reserved_s: int
    low_s: float
    high_s: float | None
    kind: str
    used_s: float
    attempts: int
    source: str
    """Source of the used seconds: the `job script`, or the `result` itself."""
    lost_s: float = 0.0
    """Used by jobs of the run that led to no result: cancelled, failed, or made before it was forgotten."""

    @property
    def is_inside(self) -> bool:
        """Whether it took a time between the ends of its expectation."""
        return self.high_s is not None and self.low_s <= self.used_s <= self.high_s


def compare(studies: Iterable[Study], machine: str) -> tuple[list[PlannedAndUsed], list[str]]:
    """Every run of the studies that has a result and was planned; and the names of those that have a result alone."""
    plans = {str(entry.get("run")): entry for entry in json_lines(plans_file(machine))}
    attempts: dict[str, list[LedgerAttempt]] = defaultdict(list)
    for attempt in read_ledger():
        if attempt.machine == machine:
            attempts[attempt.run].append(attempt)
    rows: dict[str, PlannedAndUsed] = {}
    unplanned: dict[str, None] = {}
    for name, run in ((study.name, run) for study in studies for run in study.runs if run.id not in rows):
        result = read_result(machine, run)
        if result is None or not result.get("ended"):
            continue
        plan = plans.get(run.id)
        if plan is None:
            unplanned[run.id] = None
            continue
        rows[run.id] = PlannedAndUsed(
            name, run.id, plan["gpus"], plan["nodes"], plan["requested_s"], plan["low_s"], plan["high_s"],
            plan["kind"], *_used(result, attempts[run.id]),
        )  # fmt: skip
    return list(rows.values()), list(unplanned)


def _used(result: Mapping[str, Any], attempts: Sequence[LedgerAttempt]) -> tuple[float, int, str, float]:
    """Seconds over all attempts that led to the run's result, their number, the source of the seconds, and the seconds
    of attempts that did not."""
    began = [attempt for attempt in attempts if attempt.used_s is None or attempt.used_s > 0]
    # A last attempt without an end: its driver died before it could note it, and the ledger has only older ones.
    last = _chain(began) if began and began[-1].used_s is not None else []
    lost = sum(attempt.used_s or 0.0 for attempt in began[: len(began) - len(last)])
    if last:
        return sum(attempt.used_s or 0.0 for attempt in last), len(last), "job script", lost
    took = datetime.fromisoformat(result["ended"]) - datetime.fromisoformat(result["started"])
    wall_s = result["metrics"].get("wall_s")
    return took.total_seconds() if wall_s is None else float(wall_s), 1, "result", lost


def _chain(attempts: Sequence[LedgerAttempt]) -> Sequence[LedgerAttempt]:
    """The last attempts, back to the one that began the chain."""
    first = len(attempts) - 1
    while first > 0 and attempts[first].number > 1 and attempts[first - 1].number < attempts[first].number:
        first -= 1
    return attempts[first:]


def show_actual(targets: Sequence[str], studies: Sequence[Study], machine: str) -> tuple[str, dict[str, Any]]:
    """The comparison for people and as plain data; `targets` are studies, none: all. UserError where there is none."""
    chosen = [study for study in studies if not targets or study.name in targets or "all" in targets]
    rows, unplanned = compare(chosen, machine)
    if not rows:
        raise UserError(
            "no finished run has a plan: the driver notes one for each run that it starts",
            str(plans_file(machine)),
            "run the studies, then run the command again",
        )
    unit = "gpus" if any(row.gpus for row in rows) else "nodes"
    total = {
        name: round(sum((getattr(row, f"{name}_s") or 0.0) * getattr(row, unit) for row in rows) / 3600, 4)
        for name in ("reserved", "low", "high", "used", "lost")
    }
    by_kind: dict[str, list[PlannedAndUsed]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    inside = {kind: [len(several), sum(row.is_inside for row in several)] for kind, several in by_kind.items()}
    others = round(sum(attempt.gpu_hours for attempt in read_ledger() if attempt.rule != "train"), 4)
    word = "GPU hours" if unit == "gpus" else "node hours"
    data = {
        "unit": word,
        "total": {"runs": len(rows), **total},
        "inside_by_kind": {kind: {"runs": runs, "inside": hits} for kind, (runs, hits) in inside.items()},
        "without_plan": unplanned,
        "other_jobs": {"gpu_hours": others},
        "runs": [asdict(row) for row in rows],
    }
    lines = [
        f"{'study':20}  {'reserved':>11}  {'expected':>19}  {'used':>9}  {'expected from':13}  {'used from':10}  run"
    ]
    for row in rows:
        span = f"{row.low_s:,.0f} – {'?' if row.high_s is None else f'{row.high_s:,.0f}'}"
        lines.append(
            f"{row.study:20}  {row.reserved_s:>9,} s  {span:>17} s  {row.used_s:>7,.0f} s  {row.kind:13}  {row.source:10}  {row.run}"
        )
    lines.append(
        f"{len(rows)} runs, in {word}: {total['reserved']:,} reserved, {total['low']:,} to {total['high']:,} expected, "
        f"{total['used']:,} used; {total['lost']:,} more by jobs without a result, {others:,} GPU hours by those of data."
    )
    lines += [
        f"Expected from {kind}: {hits} of {runs} runs fell within their P5 to P95 interval, which should hold 90 %."
        for kind, (runs, hits) in inside.items()
        if kind != "unknown"
    ]
    if unplanned:
        lines.append(f"{len(unplanned)} runs have a result and no plan: no driver of this folder made them.")
    return "\n".join(lines), data
