"""What a verdict rests on, what stands for something else in its runs, and how many verdicts rest on what."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scalestudy.claims.model import Claim, OfRuns, Published, Sampled
from scalestudy.claims.select import ClaimPart, Row
from scalestudy.spec.columns import DEVICE_FREE_COLUMNS
from scalestudy.spec.run import INFINITE, NGINX, is_compute_emulated
from scalestudy.spec.step_times import emulated_step_time

if TYPE_CHECKING:
    from scalestudy.spec.study import Run

DOCUMENT, OURS = "document", "ours"
MEASURED, WITH_STAND_INS, INSTRUMENT_CHECK = "measured", "with stand-ins", "instrument check"
PUBLISHED, ELSEWHERE = "published arithmetic", "elsewhere"
BASES = {
    MEASURED: "runs on this machine, nothing in them stands for anything else",
    WITH_STAND_INS: "runs in which something stands for the real thing; each stand-in is named with its value",
    INSTRUMENT_CHECK: "the number follows from a setting of the study file, so the check is of scalestudy itself",
    PUBLISHED: "arithmetic on published numbers; nothing was measured",
    ELSEWHERE: "this machine or this scale lacks what the claim is about",
}
"""Each basis with its meaning, in the order in which verdicts are counted."""
MARKS = {
    "reproduced": "✓",
    "not reproduced": "✗",
    "inconclusive": "?",
    "passed": "+",
    "failed": "!",
    "consistent": "=",
    "inconsistent": "≠",
    "not run": "·",
    "not testable here": "–",
}
"""Each verdict with its mark, in the order in which verdicts are listed."""
NOT_OF_DEVICES = ("accuracy", "auroc", "loss", "parameters", "stages", *DEVICE_FREE_COLUMNS)
"""Columns that do not depend on how fast a device is."""

LIMITS = {
    "network.mib_per_s": "A network of {} MiB/s per node is emulated",
    "network.latency_ms": "A latency of {} ms between nodes is emulated",
    "loader.memory_limit_mib": "A page cache of {} MiB is emulated",
    "memory_limit_mib": "A process that the kernel limits to {} MiB stands for a device",
    "loader.origin": "{} on this machine stands for another server",
}
"""Keys whose value is that of something emulated."""


def basis_of(claim: Claim, stand_ins: Sequence[str]) -> str:
    """The basis of a claim that its scale can judge."""
    if isinstance(claim, Published):
        return PUBLISHED
    if getattr(claim, "follows_from", None):
        return INSTRUMENT_CHECK
    return WITH_STAND_INS if stand_ins else MEASURED


def label(verdict: str, basis: str) -> str:
    """A verdict with its stand-ins: `reproduced with stand-ins`."""
    return f"{verdict} {basis}" if basis == WITH_STAND_INS and verdict != "not run" else verdict


def stand_ins_of(claim: OfRuns, runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each stand-in of a claim's runs in a sentence; `rows` are their rows of the summary."""
    devices = {row.get("instrument.device_name") for row in rows}
    keys = [run.columns for run in runs]
    judged = (
        {claim.column, claim.per or claim.column}
        if isinstance(claim, Sampled)
        else {one.column for one in claim.checks}
    )
    if judged <= {*DEVICE_FREE_COLUMNS}:
        keys = [{**columns, "device": None} for columns in keys]
    sentences = [sentence for columns in keys for sentence in _of_run(columns)]
    ranks = [columns["ranks"] for columns in keys if not is_compute_emulated(columns)]
    if claim.origin == DOCUMENT and ranks and "cpu" in devices and not judged <= {*NOT_OF_DEVICES, "status"}:
        sentences.append(f"{'CPU cores stand' if max(ranks) > 1 else 'A CPU core stands'} for GPUs")
    if any(row.get("exchange_shares_cores") for row in rows):
        sentences.append("More processes exchange than the host has cores")
    return list(dict.fromkeys([*sentences, *claim.stand_ins]))


def _of_run(columns: Mapping[str, Any]) -> Iterator[str]:
    """What a run's settings put in place of the real thing, with their values."""
    if is_compute_emulated(columns):
        yield _compute_text(columns)
    latency, rate = (columns.get(f"loader.storage.{key}") for key in ("latency_ms", "mib_per_s"))
    if latency is not None:
        of_rate = "" if rate is None else f" of {rate:g} MiB/s"
        yield f"A storage{of_rate} with {latency:g} ms per request is emulated"
    for key, text in LIMITS.items():
        value = columns.get(key)
        if value and (key != "loader.origin" or value == NGINX):
            yield text.format(value if isinstance(value, str) else f"{value:g}")
    if columns.get("data.latency_s"):
        yield f"Each item takes {columns['data.latency_s']:g} s because its reader sleeps"
    for fault in columns.get("faults") or ():
        values = [f"{key} {value}" for key, value in fault.items() if key != "kind" and value]
        yield f"A fault is injected: {' '.join([fault['kind'].replace('_', ' '), *values])}"


def _compute_text(columns: Mapping[str, Any]) -> str:
    accelerator, model, batch = columns["device"].partition(":")[2], columns["model"], columns["batch.per_rank"]
    if accelerator == INFINITE:
        return "Computing takes no time"
    seconds = emulated_step_time(model, accelerator, batch)
    return f"The step of `{accelerator}` is emulated: {1000 * seconds:.3g} ms for {model} with a batch of {batch}"


def tallies(verdicts: Iterable[tuple[str, str, str]]) -> list[str]:
    """`measured: 5 (3 reproduced, 1 inconclusive; ours: 1 reproduced)` for each basis, from basis, origin and verdict."""
    counts = Counter(verdicts)
    lines = []
    for basis in BASES:
        groups = []
        for head, origin in (("", DOCUMENT), ("ours: ", OURS)):
            of_origin = {verdict: counts[basis, origin, verdict] for verdict in MARKS}
            if verdict_text := ", ".join(f"{count} {verdict}" for verdict, count in of_origin.items() if count):
                groups.append(f"{head}{verdict_text}")
        if groups:
            total = sum(count for key, count in counts.items() if key[0] == basis)
            lines.append(f"{basis}: {total} ({'; '.join(groups)})")
    return lines


# Where a verdict with an emulated accelerator would flip

MAX_HIDDEN_STALL = 0.02
"""Share of a step above which it waits for its data."""
FACTORS = [10 ** (exponent / 100) for exponent in range(-200, 201)]
"""Factors of an emulated step that are tried, from a hundredth to a hundredfold."""


def flip_text(claim: Sampled, part: ClaimPart) -> list[str]:
    """The emulated step nearest to the present one with which the comparison of two sides would cross the claim's limit.

    A step that waits for data lasts as long as the data takes, or as the accelerator if that takes longer; else what a step
    has beside the accelerator's time stays as it is. Empty where a side computes, or no such step is found.
    """
    is_rate = claim.column in ("throughput_samples_per_s", "efficiency")
    compared_as = "difference" if claim.column == "data_stall" else "ratio"
    if claim.compared_as != compared_as or claim.over or claim.per or claim.take:
        return []
    if not (is_rate or claim.column in ("step_time_s", "data_stall")):
        return []
    of, against = map(_emulated_step, part.sides)
    if of is None or against is None:
        return []
    low, high = claim.bounds
    # An efficiency is the throughput of a rank, over a base that both sides have.
    samples, others = (
        side[0]["batch.global"] / (side[0]["ranks"] if claim.column == "efficiency" else 1) for side in part.sides
    )

    def seconds(step: _Step, factor: float) -> float:
        slower = factor * step.accelerator_s
        return max(step.step_s, slower) if step.waits else slower + max(0.0, step.step_s - step.accelerator_s)

    def stall(step: _Step, factor: float) -> float:
        return max(0.0, step.stall - (factor - 1) * step.accelerator_s / step.step_s) if step.waits else step.stall

    def holds(factor: float) -> bool:
        if claim.column == "data_stall":
            return bool(low < stall(of, factor) - stall(against, factor) < high)
        ratio = seconds(of, factor) / seconds(against, factor)
        return bool(low < (samples / others / ratio if is_rate else ratio) < high)

    # What workers could deliver to a faster accelerator is not known.
    ahead = any(row["loader.workers"] for row in part.rows)
    now_holds = holds(1.0)
    crossed = [factor for factor in FACTORS if holds(factor) != now_holds and not (ahead and factor < 1)]
    if not crossed:
        return []
    nearest = min(crossed, key=lambda factor: abs(math.log(factor)))
    times = (factor * of.accelerator_s for factor in (nearest, 1.0))
    then, now = (f"{time:.2g} s" if time >= 1 else f"{1000 * time:.3g} ms" for time in times)
    return [f"With a step of {then} in place of {now} the verdict would flip, if all else stayed"]


class _Step(NamedTuple):
    step_s: float
    accelerator_s: float
    stall: float

    @property
    def waits(self) -> bool:
        return self.stall > MAX_HIDDEN_STALL


def _emulated_step(side: Sequence[Row]) -> _Step | None:
    """The median step of a side, its accelerator's part, and the share in which it waits for data.

    None where its accelerator is real or takes no time, or its exchange overlaps.
    """
    if not side or not all(row["status"] == "valid" and is_compute_emulated(row) for row in side):
        return None
    first = side[0]
    # An exchange beside the backward pass hides more behind a longer one.
    if first["device"].endswith(INFINITE) or (first["ranks"] > 1 and math.isnan(first["exchange_s"])):
        return None
    own = emulated_step_time(first["model"], first["device"].partition(":")[2], first["batch.per_rank"])
    seconds, stall = (statistics.median(float(row[name]) for row in side) for name in ("step_time_s", "data_stall"))
    return _Step(seconds, own, stall)
