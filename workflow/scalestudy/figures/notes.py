"""The small print below a figure or table: how many runs, what kind of numbers, what is missing and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scalestudy.analysis.periods import days, tie
from scalestudy.analysis.rounding import plain as number
from scalestudy.analysis.rounding import with_interval
from scalestudy.analysis.scaling import Base
from scalestudy.analysis.stats import FEWEST, Interval
from scalestudy.analysis.summarise import VOLATILE
from scalestudy.figures.chart import Line
from scalestudy.figures.words import listed

Row = Mapping[str, Any]
DISTURBED = "†"
"""Marks a mean that holds runs beside which others used the host."""
LONGEST_REASON = 110
MOST_VALUES = 3

INSTRUMENT = {
    "cpu": "processor",
    "cores": "cores",
    "memory_gib": "memory (GiB)",
    "device_name": "device",
    "torch": "torch",
    "nccl": "NCCL",
    "mpi": "MPI",
    "driver": "driver",
    "python": "Python",
    "system": "system",
    "decoder": "pictures by",
    "code": "measuring code",
}
"""What results say about the instrument, in words."""


def repeats(lines: Iterable[Line]) -> str:
    """`n = 3 runs per point (dots); bars: 95 % interval of the mean`."""
    measured = [line for line in lines if line.role in ("series", "band")]
    counts = {point.n for line in measured for point in line.points}
    if not counts:
        return ""
    text = f"n = {min(counts)}" if len(counts) == 1 else f"n = {min(counts)} to {max(counts)}"
    text += " run per point" if counts == {1} else " runs per point"
    if max(counts) < FEWEST:
        return f"{text}{' (dots)' if max(counts) > 1 else ''}: too few for an interval"
    drawn = "band" if any(line.role == "band" for line in measured) else "bars"
    few = f" (from {FEWEST} runs on)" if min(counts) < FEWEST else ""
    return f"{text}{'' if drawn == 'band' else ' (dots)'}; {drawn}: 95 % interval of the mean{few}"


def extrapolated(lines: Iterable[Line]) -> str:
    """Said where any point is extrapolated or predicted."""
    points = [point for line in lines if line.role == "series" for point in line.points]
    found = []
    if any(point.kind == "extrapolated" for point in points):
        own = max((point.own for point in points if point.own is not None), default=None)
        unsure = "" if own is None else f", which alone is uncertain by up to ±{number(100 * own, 2)} %"
        found.append(f"Extrapolated: the full training, from a measured window{unsure}")
    if any(point.kind == "predicted" for point in points):
        found.append("Predicted: before the first step, not measured")
    return ". ".join(found)


def bases(shown: Sequence[tuple[str, Base]]) -> list[str]:
    """What efficiencies are relative to, with its absolute rate: one note for each workload, by its panel's title."""
    several = len({title for title, _ in shown}) > 1
    return [f"{title}: {_base(base)}" if several and title else _base(base) for title, base in dict.fromkeys(shown)]


def _base(base: Base) -> str:
    rate = with_interval(base.rate.mean, base.rate.low, base.rate.high)
    runs = f"{base.rate.n} run" + ("" if base.rate.n == 1 else "s")
    names = listed((name.replace("_", " ") for name in base.strategies), 4)
    if base.kind == "single":
        how = f"mean of {runs} on one rank without exchange ({names})"
    else:
        how = (
            f"mean of {runs} of all series at their fewest ranks, for no run on one rank is without exchange ({names})"
        )
    return f"Base X(N₀) = {rate} samples/s, N₀ = {base.ranks}: {how}"


def disturbed(rows: Sequence[Row]) -> str:
    """How many of the valid runs other processes disturbed; what holds one is marked."""
    valid = [row for row in rows if row["status"] == "valid"]
    count = sum(bool(row["disturbed"]) for row in valid)
    return (
        f"{DISTURBED}: holds disturbed runs ({count} of {len(valid)}), beside which others used the host"
        if count
        else ""
    )


def measured_apart(rows: Sequence[Row]) -> list[str]:
    """Said where rows of several periods of measuring stand side by side, and what ties the periods."""
    valid = [row for row in rows if row["status"] == "valid" and row["period"] > 0]
    by_period: dict[int, list[Row]] = {}
    for row in valid:
        by_period.setdefault(row["period"], []).append(row)
    if len(by_period) < 2:
        return []
    named = [f"{days(members)} ({len(members)} runs)" for _, members in sorted(by_period.items())]
    first, *others = sorted(by_period)
    ties = [_tie(tie(valid, first, other, "throughput_samples_per_s")) for other in others]
    return [f"Measured apart: {listed(named, 4)}. {listed(dict.fromkeys(ties), 3)}"]


def _tie(found: Interval | None) -> str:
    if found is None:
        return "Nothing was measured in both, so that a change of the machine cannot be told from an effect: raise `repeats`"
    low, high = (None if end is None else 100 * math.expm1(end) for end in (found.low, found.high))
    change = with_interval(100 * math.expm1(found.mean), low, high)
    return f"Configurations measured in both ({found.n}) are faster by {change} % the second time"


def emulated(rows: Iterable[Row]) -> str:
    """What of these runs is emulated, and what is real beside it; empty where all is real."""
    rows = list(rows)
    devices = [str(row.get("device")).partition("emulated:")[2] for row in rows]
    said, accelerators = [], list(dict.fromkeys(filter(None, devices)))
    timed = [name.replace("_", " ").upper() for name in accelerators if name != "infinite"]
    if timed:
        said.append(f"Compute is emulated: a step waits as long as published for {listed(timed, 3)}")
    if "infinite" in accelerators:
        said.append("Compute is left out: it takes no time")
    if rates := _values(rows, "network.mib_per_s"):
        said.append(f"The network is emulated: {' or '.join(rates)} MiB/s per node")
    said += _storages(rows)
    if accelerators:
        real = ["exchange"] if any(_number(row.get("ranks")) > 1 for row in rows) else []
        made = all(row.get("data.source") == "synthetic" or row.get("loader.mode") == "synthetic" for row in rows)
        real += [] if made else ["loading"]
        said += [f"Real: {' and '.join(real)}"] if real else []
        said += ["Samples are made in memory"] if made else []
    return ". ".join(said)


def _storages(rows: Sequence[Row]) -> Iterator[str]:
    """Each emulated storage of these runs, with its rate and latency."""
    found = {}
    for row in rows:
        rate, latency = (row.get(f"loader.storage.{key}") for key in ("mib_per_s", "latency_ms"))
        parts = [f"{rate:g} MiB/s"] if _given(rate) else []
        parts += [f"{latency:g} ms per request"] if _given(latency) else []
        if parts:
            found[", ".join(parts)] = None
    if found:
        yield f"Storage is emulated: {listed(found, 3)}"


def _values(rows: Iterable[Row], key: str) -> list[str]:
    return list(dict.fromkeys(f"{row[key]:g}" for row in rows if _given(row.get(key))))


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _given(value: object) -> bool:
    return isinstance(value, (int, float)) and not math.isnan(value) and value > 0


def missing(rows: Sequence[Row]) -> str:
    """`2 of 18 runs missing: 1 invalid (loss not finite), 1 skipped (…)`."""
    absent = [row for row in rows if row["status"] != "valid"]
    if not absent:
        return ""
    parts = []
    for status, word in (("invalid", "invalid"), ("skipped", "skipped"), ("missing", "not run")):
        reasons = Counter(str(row["reason"]) for row in absent if row["status"] == status)
        if reasons:
            why = [shortened(reason) for reason, _ in reasons.most_common() if reason and reason != "no result yet"]
            parts.append(f"{sum(reasons.values())} {word}" + (f" ({listed(why, 2)})" if why else ""))
    return f"{len(absent)} of {len(rows)} runs missing: {', '.join(parts)}"


def shortened(reason: str) -> str:
    """A reason in one line of bounded length."""
    words = " ".join(reason.split())
    return words if len(words) <= LONGEST_REASON else words[: LONGEST_REASON - 1].rstrip() + "…"


def trust(rows: Sequence[Row]) -> list[str]:
    """Disturbance, drift, periods and instruments that differ, among valid rows."""
    valid = [row for row in rows if row["status"] == "valid"]
    found = []
    if note := disturbed(rows):
        found.append(note)
    if any(row["drifted"] for row in valid):
        worst = max((row for row in valid if row["drifted"]), key=lambda row: abs(row["drift"]))
        percent = with_interval(*(100 * worst[name] for name in ("drift", "drift_low", "drift_high")))
        found.append(
            f"Drift: in round {worst['round'] + 1} throughput differs by {percent} % from the mean of all rounds, over all configurations"
        )
    found += measured_apart(rows)
    if mixed := differing(valid):
        found.append(f"Instruments mixed: {listed(mixed, 4)}")
    return found


def differing(rows: Sequence[Row]) -> list[str]:
    """What the instruments of these rows differ in."""
    found = []
    for key in sorted({key for row in rows for key in row if key.startswith("instrument.")}):
        name = key.removeprefix("instrument.")
        values = sorted({str(row[key]) for row in rows if row[key] and not (name == "device_name" and row["emulated"])})
        if len(values) > 1 and name not in VOLATILE:
            name = INSTRUMENT.get(name, name)
            found.append(
                f"{name} {' / '.join(values)}" if len(values) <= MOST_VALUES else f"{len(values)} kinds of {name}"
            )
    return found
