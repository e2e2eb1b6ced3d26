"""What hides what in the traced steps of a run: columns, a table to draw, and one trace of all ranks.

Read from traces of torch.profiler (training/tracing.py). On a GPU, kernels compute or exchange and copies from the host
are copies; on a CPU, the training thread's operators compute, and what gloo reports is the exchange.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy.data.load.workers import MAKING
from scalestudy.files import read_json, write_with
from scalestudy.measure.intervals import NONE, Intervals, difference, intersection, total, union
from scalestudy.measure.timers import EXCHANGE, STEP, TRACED, WAIT
from scalestudy.training.job import Job
from scalestudy.training.tracing import CLOCK

COMMUNICATION = re.compile(r"(gloo|mpi):")
NCCL = "nccl"
KERNELS, COPIES = ("kernel", "gpu_memset"), "gpu_memcpy"
Event = Mapping[str, Any]


@dataclass(frozen=True)
class RankTrace:
    """The traced steps of one rank, in seconds on rank 0's clock."""

    rank: int
    steps: Intervals
    rows: dict[str, Intervals]
    calls: tuple[tuple[float, float, str], ...]
    """Begin, end and name of each call of an exchange, by its begin."""
    on_gpu: bool


def write_timeline(job: Job, folder: Path) -> dict[str, float | None]:
    """Columns of the traced ranks; writes trace.json.gz and timeline.parquet into `folder`."""
    import pandas as pd

    ranks, together = list[RankTrace](), list[dict[str, Any]]()
    for rank, file in sorted((int(file.name.split(".")[1]), file) for file in job.folder.glob("trace.*.json")):
        events = json.loads(file.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
        shift_s = shift_of(events, read_json(job.folder / f"clock.{rank}.json"))
        ranks.append(read_trace(rank, events, shift_s))
        together += _of_rank(rank, events, shift_s)
    ranks = with_waits(ranks)
    content = gzip.compress(json.dumps({"traceEvents": together}).encode())
    write_with(folder / "trace.json.gz", lambda path: path.write_bytes(content))
    table = pd.DataFrame(_table(ranks), columns=["rank", "row", "begin_s", "end_s"])
    write_with(folder / "timeline.parquet", table.to_parquet)
    return columns(ranks)


def shift_of(events: Sequence[Event], clock: Mapping[str, float]) -> float:
    """Seconds from a trace's clock to rank 0's, by the span in which the host's clock was read."""
    (mark,) = (event for event in events if event.get("ph") == "X" and event["name"] == CLOCK)
    return clock["read_s"] - 1e-6 * float(mark["ts"] + mark["dur"] / 2) + clock["ahead_s"]


def read_trace(rank: int, events: Sequence[Event], shift_s: float) -> RankTrace:
    """The rows of a rank, from the events of its trace; of waits for other ranks, `with_waits` knows."""
    spans = [event for event in events if event.get("ph") == "X"]
    steps = [event for event in spans if re.fullmatch(rf"{STEP} \d+", event["name"]) and _is(event, "user_annotation")]
    thread, on_gpu = steps[0]["tid"], any(_is(event, *KERNELS) for event in spans)

    def ends(event: Event) -> tuple[float, float]:
        return 1e-6 * event["ts"] + shift_s, 1e-6 * (event["ts"] + event["dur"]) + shift_s

    def phase(name: str) -> Intervals:
        return union([ends(event) for event in spans if event["name"] == name and event["tid"] == thread])

    def those(predicate: Callable[[Event], bool]) -> list[tuple[float, float]]:
        return [ends(event) for event in spans if predicate(event)]

    waited, converted = phase("data"), phase("convert")
    if on_gpu:
        copy = union(those(lambda event: _is(event, COPIES) and "HtoD" in event["name"]))
        compute = union(those(lambda event: _is(event, *KERNELS) and not _exchanges(event)))
    else:
        operators = those(
            lambda event: _is(event, "cpu_op") and event["tid"] == thread and event["name"].startswith("aten::")
        )
        copy, compute = converted, difference(union(operators), union(waited, converted))
    calls = sorted((*ends(event), str(event["name"])) for event in spans if _exchanges(event))
    made = union(those(lambda event: event["name"] == MAKING))
    rows = (made, waited, copy, compute, NONE, union([call[:2] for call in calls]))
    return RankTrace(
        rank, np.array(sorted(map(ends, steps))), dict(zip(TRACED, rows, strict=True)), tuple(calls), on_gpu
    )


def with_waits(ranks: Sequence[RankTrace]) -> list[RankTrace]:
    """The ranks with their exchange divided: until the last rank has entered a call, the others wait for it.

    Where ranks do not make the same calls in the same order, all of it is exchange.
    """
    names = {tuple(name for _, _, name in of_rank.calls) for of_rank in ranks}
    if len(names) != 1 or len(ranks) == 1:
        return list(ranks)
    entered = np.array([[begin for begin, _, _ in of_rank.calls] for of_rank in ranks]).max(axis=0)
    divided = []
    for of_rank in ranks:
        calls = np.array([call[:2] for call in of_rank.calls]).reshape(-1, 2)
        last = np.clip(entered, calls[:, 0], calls[:, 1])
        transfer = union(np.column_stack([last, calls[:, 1]]))
        wait = difference(union(np.column_stack([calls[:, 0], last])), transfer)
        divided.append(replace(of_rank, rows={**of_rank.rows, WAIT: wait, EXCHANGE: transfer}))
    return divided


def columns(ranks: Sequence[RankTrace]) -> dict[str, float | None]:
    """Means over ranks and steps: the step, the exchange that nothing hides, and the shares that something hides.

    `exchange_hidden` is the overlap of communication and computation as HolisticTraceAnalysis defines it: of the time of
    all calls, the share in which the rank computes, waits for other ranks included.
    """
    parts = [_seconds(of_rank) for of_rank in ranks]
    whole = {name: sum(part[name] for part in parts) for name in parts[0]}
    steps = sum(len(of_rank.steps) for of_rank in ranks)

    def share(part: str, of: str) -> float | None:
        return whole[part] / whole[of] if whole[of] else None

    return {
        "traced_step_s": whole["steps"] / steps,
        "exchange_hidden": share("exchange hidden", "exchange"),
        "bare_transfer_s": whole["bare transfer"] / steps if whole["exchange"] else None,
        "bare_wait_s": whole["bare wait"] / steps if whole["exchange"] else None,
        "making_hidden": share("making hidden", "making"),
        "copy_hidden": share("copy hidden", "copy") if all(of_rank.on_gpu for of_rank in ranks) else None,
    }


def _seconds(of_rank: RankTrace) -> dict[str, float]:
    """What one rank's columns are made of, summed over its traced steps."""
    made, data, copy, compute, wait, transfer = (intersection(of_rank.rows[row], of_rank.steps) for row in TRACED)
    exchange = union(wait, transfer)
    parts = {
        "steps": of_rank.steps,
        "exchange": exchange,
        "exchange hidden": intersection(exchange, compute),
        "bare transfer": difference(transfer, compute),
        "bare wait": difference(wait, compute),
        "making": made,
        "making hidden": difference(made, data),
        "copy": copy,
        "copy hidden": intersection(copy, compute),
    }
    return {name: total(intervals) for name, intervals in parts.items()}


def _exchanges(event: Event) -> bool:
    return COMMUNICATION.match(event["name"]) is not None or (_is(event, "kernel") and NCCL in event["name"].lower())


def _is(event: Event, *categories: str) -> bool:
    return event.get("cat") in categories


def _of_rank(rank: int, events: Sequence[Event], shift_s: float) -> Iterator[dict[str, Any]]:
    """A rank's events on rank 0's clock, as those of a process of its name; arrows between them are left out."""
    for event in events:
        if event.get("ph") in ("s", "t", "f"):
            continue
        process, args = event.get("pid"), event.get("args", {})
        name = f"rank {rank}" if isinstance(process, int) else f"rank {rank}, {process}"
        if event["name"] == "process_name":
            args = {"name": name}
        time_us = {"ts": event["ts"] + 1e6 * shift_s} if "ts" in event else {}
        yield {**event, "pid": name, "args": args, **time_us}


def _table(ranks: Sequence[RankTrace]) -> list[tuple[int, str, float, float]]:
    """Rank, row, begin and end of all intervals of the traced steps, and the steps, in seconds since the first one began."""
    zero = min(float(of_rank.steps[0, 0]) for of_rank in ranks)
    return [
        (of_rank.rank, row, begin - zero, end - zero)
        for of_rank in ranks
        for row, intervals in {STEP: of_rank.steps, **of_rank.rows}.items()
        for begin, end in intersection(intervals, of_rank.steps).tolist()
    ]
