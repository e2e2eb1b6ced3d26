"""Plan against actual: what was expected of each run before its job was submitted, and what it used."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from scalestudy.cluster.ledger.used import ACCOUNTING, LedgerAttempt, accounted, read_ledger
from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import Resources
from scalestudy.errors import UserError
from scalestudy.files import canonical_json, json_lines, plain_file
from scalestudy.results.stored import read_result
from scalestudy.spec.config import read_site
from scalestudy.spec.layout import RESULTS
from scalestudy.spec.study import Study


def plans_file(machine: str) -> Path:
    """What was planned for each run before its job was submitted; append-only."""
    return RESULTS / machine / "plans.jsonl"


def note_plan(machine: str, run: str, asked: Resources, estimate: TimeEstimate) -> None:
    """Remember the plan of a run whose job is about to be submitted or started."""
    high = estimate.high_s if estimate.known else None
    line = {
        "run": run, "time_s": round(time.time(), 1), "nodes": asked.nodes, "gpus": asked.gpus_held,
        "requested_s": asked.requested_s, "low_s": round(estimate.low_s, 1), "high_s": high and round(high, 1), "kind": estimate.kind,
    }  # fmt: skip
    file = plans_file(machine)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8", opener=plain_file) as stream:
        stream.write(canonical_json(line) + "\n")


def read_plans(machine: str) -> dict[str, dict[str, Any]]:
    """The last plan of each run."""
    return {
        str(entry["run"]): entry
        for entry in json_lines(plans_file(machine))
        if all(isinstance(entry.get(key), kinds) for key, kinds in PLANNED.items())
    }


PLANNED: dict[str, Any] = {"run": str, "nodes": int, "gpus": int, "requested_s": (int, float), "low_s": (int, float), "kind": str,
           "high_s": (int, float, type(None))}  # fmt: skip
"""What a line says, and as what."""


@dataclass(frozen=True)
class PlannedAndUsed:
    """One finished run: seconds that its jobs were planned for, and took."""

    study: str
    run: str
    gpus: int
    nodes: int
    requested_s: int
    low_s: float
    high_s: float | None
    kind: str
    used_s: float
    links: int
    source: str
    """Who says what was used: `accounting` of the scheduler, `job script`, or the `result` itself."""
    lost_s: float = 0.0
    """Used by jobs of the run that led to no result: cancelled, failed, or made before it was forgotten."""

    @property
    def middle_s(self) -> float | None:
        """Midpoint of the expected range."""
        return None if self.high_s is None else (self.low_s + self.high_s) / 2


def compare(studies: Iterable[Study], machine: str) -> tuple[list[PlannedAndUsed], list[str]]:
    """Every run of the studies that has a result and was planned; and the names of those that have a result alone, which
    no driver of this folder has made."""
    plans, unplanned = read_plans(machine), []
    attempts: dict[str, list[LedgerAttempt]] = defaultdict(list)
    for attempt in read_ledger():
        if attempt.machine == machine:
            attempts[attempt.run].append(attempt)
    seconds = _accounted([attempt for of_run in attempts.values() for attempt in of_run])
    rows: dict[str, PlannedAndUsed] = {}
    seen: set[str] = set()
    for study in studies:
        for run in study.runs:
            result = None if run.id in seen else read_result(machine, run)
            seen.add(run.id)
            if result is None or not result.get("ended"):
                continue
            plan = plans.get(run.id)
            if plan is None:
                unplanned.append(run.id)
                continue
            used, count, source, lost = _used(result, attempts.get(run.id, []), seconds)
            rows[run.id] = PlannedAndUsed(
                study.name, run.id, plan["gpus"], plan["nodes"], plan["requested_s"], plan["low_s"], plan["high_s"],
                plan["kind"], used, count, source, lost,
            )  # fmt: skip
    return list(rows.values()), unplanned


def _accounted(attempts: Sequence[LedgerAttempt]) -> Mapping[str, float]:
    settings = read_site().scheduler
    kind = settings.kind if settings is not None else None
    ids = [attempt.id for attempt in attempts if attempt.id]
    return accounted(kind, ids) if kind in ACCOUNTING and ids else {}


def _used(
    result: Mapping[str, Any], attempts: Sequence[LedgerAttempt], seconds: Mapping[str, float]
) -> tuple[float, int, str, float]:
    """Seconds over all attempts that led to the run's result, their number, where the seconds come from, and the seconds of
    attempts that did not."""
    began = [attempt for attempt in attempts if attempt.used_s is None or attempt.used_s > 0]
    # A last attempt without an end: its driver died before it could note it, and the ledger has only older ones.
    known = bool(began) and began[-1].used_s is not None
    last = _chain(began) if known else []
    lost = sum(attempt.used_s or 0.0 for attempt in began[: len(began) - len(last)])
    if last:
        if all(attempt.id in seconds for attempt in last):
            return sum(seconds[str(attempt.id)] for attempt in last), len(last), "accounting", lost
        return sum(attempt.used_s or 0.0 for attempt in last), len(last), "job script", lost
    took = datetime.fromisoformat(result["ended"]) - datetime.fromisoformat(result["started"])
    wall = result["metrics"].get("wall_s")
    return float(wall) if wall is not None else took.total_seconds(), 1, "result", lost


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
    others = [attempt for attempt in read_ledger() if attempt.rule != "train"]
    return _table(rows, others, unplanned), _plain(rows, others, unplanned)


def _sum(rows: Iterable[PlannedAndUsed], of: str, per: str) -> float:
    return float(sum((getattr(row, of) or 0.0) * getattr(row, per) for row in rows)) / 3600


def _plain(
    rows: Sequence[PlannedAndUsed], others: Sequence[LedgerAttempt] = (), unplanned: Sequence[str] = ()
) -> dict[str, Any]:
    known = [row for row in rows if row.high_s is not None]
    per = "gpus" if any(row.gpus for row in rows) else "nodes"
    expected, used = _sum(known, "middle_s", per), _sum(known, "used_s", per)
    return {
        "unit": "GPU hours" if per == "gpus" else "node hours",
        "total": {
            "runs": len(rows),
            "requested": round(_sum(rows, "requested_s", per), 4),
            "low": round(_sum(known, "low_s", per), 4),
            "high": round(_sum(known, "high_s", per), 4),
            "used": round(_sum(rows, "used_s", per), 4),
            "runs_expected": len(known),
            "used_by_expected": round(used, 4),
            "expected_over_used": round(expected / used, 3) if used else None,
        },
        "inside_by_kind": {kind: {"runs": runs, "inside": inside} for kind, (runs, inside) in _hits(known).items()},
        "lost": {"runs": sum(row.lost_s > 0 for row in rows), "used": round(_sum(rows, "lost_s", per), 4)},
        "without_plan": list(unplanned),
        "other_jobs": {"jobs": len(others), "gpu_hours": round(sum(one.gpu_hours for one in others), 4)},
        "runs": [asdict(row) for row in rows],
    }


def _hits(known: Iterable[PlannedAndUsed]) -> dict[str, tuple[int, int]]:
    """By kind of expectation, the runs that had one, and those of them that took a time between its two ends."""
    found: dict[str, tuple[int, int]] = {}
    for row in known:
        runs, inside = found.get(row.kind, (0, 0))
        found[row.kind] = runs + 1, inside + (row.low_s <= row.used_s <= (row.high_s or 0.0))
    return found


def _table(rows: Sequence[PlannedAndUsed], others: Sequence[LedgerAttempt] = (), unplanned: Sequence[str] = ()) -> str:
    data = _plain(rows, others, unplanned)
    total = data["total"]
    head = (
        f"{'study':20}  {'requested':>11}  {'expected':>19}  {'used':>9}  {'expected from':17}  {'used from':10}  run"
    )
    lines = [head.rstrip()]
    for row in rows:
        high = f"{row.high_s:,.0f}" if row.high_s is not None else "?"
        lines.append(
            f"{row.study:20}  {row.requested_s:>9,} s  {f'{row.low_s:,.0f} – {high}':>17} s  {row.used_s:>7,.0f} s  "
            f"{row.kind:17}  {row.source:10}  {row.run}"
        )
    lines.append(
        f"{total['runs']} runs, in {data['unit']}: {total['requested']:,} requested, {total['used']:,} used. "
        f"{total['runs_expected']} of them had an expected time: {total['low']:,} to {total['high']:,} expected, "
        f"{total['used_by_expected']:,} used."
    )
    if total["expected_over_used"] is not None:
        lines.append(f"The middle of what was expected is {total['expected_over_used']:.0%} of what was used.")
    for kind, hits in data["inside_by_kind"].items():
        lines.append(
            f"Expected from {kind}: {hits['inside']} of {hits['runs']} runs fell within their P5 to P95 "
            "interval, which should hold 90 %."
        )
    if data["lost"]["runs"]:
        lines.append(
            f"Jobs that led to none of these results (cancelled, failed, or of a run that was forgotten) used "
            f"{data['lost']['used']:,} {data['unit']} more, for {data['lost']['runs']} runs."
        )
    if unplanned:
        lines.append(
            f"{len(unplanned)} runs have a result and no plan: no driver of this folder made them (`scalestudy train`, "
            "`scalestudy import`)."
        )
    if others:
        lines.append(
            f"{len(others)} jobs that train nothing (data, builds) used {data['other_jobs']['gpu_hours']:,} GPU hours: "
            "idle GPUs of nodes that they had to themselves."
        )
    return "\n".join(lines)
