"""The small print below a figure or table: how many runs, what kind of numbers, what is missing and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalestudy.analysis.summarise import VOLATILE
from scalestudy.figures.chart import Line
from scalestudy.figures.words import listed

Row = Mapping[str, Any]
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
    if max(counts) == 1:
        own = any(point.high is not None for line in measured for point in line.points)
        return f"{text}; bars: 95 % interval of its extrapolation" if own else f"{text}, so no interval"
    if any(line.role == "band" for line in measured):
        return f"{text}; band: range over repeats"
    if counts <= {1, 2}:
        return f"{text} (dots); bars: their range"
    return f"{text} (dots); bars: 95 % interval of the mean" + (", of two runs their range" if 2 in counts else "")


def extrapolated(lines: Iterable[Line]) -> str:
    """Said where any point is."""
    kinds = {point.kind for line in lines if line.role == "series" for point in line.points}
    if "predicted" in kinds:
        return "Hollow: predicted before the first step, not measured"
    if "extrapolated" not in kinds:
        return ""
    return "Open markers: extrapolated from a measured window" + (
        "; filled: measured in full" if "measured" in kinds else ""
    )


def emulated(rows: Iterable[Row]) -> str:
    """Said where any run's compute or storage is."""
    rows, said = list(rows), []
    if any(row["emulated"] for row in rows):
        said.append("Emulated compute waits for the accelerator's published step time; loading and exchange are real")
    if any(_given(row.get(f"loader.storage.{key}")) for row in rows for key in ("mib_per_s", "latency_ms")):
        said.append("Storage is emulated: reads wait for a stated rate and latency")
    return ". ".join(said)


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
    """Drift, and instruments that differ, among valid rows."""
    valid = [row for row in rows if row["status"] == "valid"]
    found = []
    if any(row["drifted"] for row in valid):
        spread = next(row["drift"] for row in valid if row["drifted"])
        found.append(f"Drift: the first configuration's throughput differs by {spread:.0%} between rounds")
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


def baselines(rows: Iterable[Row]) -> list[int]:
    """The rank counts N0 that efficiencies are relative to."""
    return sorted(
        {
            int(row["baseline_ranks"])
            for row in rows
            if row["status"] == "valid" and not math.isnan(row["baseline_ranks"])
        }
    )
