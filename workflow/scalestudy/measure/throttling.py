"""For how long the kernel throttled the processor because of its temperature, where it counts that."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from scalestudy.measure.placement import SYSTEM

COUNTERS = ("core_throttle_total_time_ms", "package_throttle_total_time_ms")
"""Of a hardware thread's core and of its socket, since the machine's start; Intel processors, Linux 5.8 and later
(drivers/thermal/intel/therm_throt.c)."""


def throttled_seconds(cores: Collection[int], system: Path = SYSTEM) -> float:
    """Time since the machine's start in which these cores were slowed down, mean over them; NaN: the kernel does not say."""
    found = [_seconds(system / f"devices/system/cpu/cpu{core}/thermal_throttle") for core in cores]
    known = [seconds for seconds in found if seconds is not None]
    return sum(known) / len(known) if known else math.nan


def _seconds(folder: Path) -> float | None:
    counts = []
    for name in COUNTERS:
        try:
            counts.append(int((folder / name).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return max(counts) / 1000 if counts else None


def around(
    rows: Sequence[Mapping[str, float]], begin: float, end: float
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The last sample before a stretch of time and the first one after it, as far as there are any."""
    before = [row for row in rows if row["clock_s"] <= begin]
    after = [row for row in rows if row["clock_s"] >= end]
    return (before or rows)[-1 if before else 0], (after or rows)[0 if after else -1]


def throttled_share(rows: Sequence[Mapping[str, float]], begin: float, end: float) -> float | None:
    """Share of the time between two moments of `perf_counter` in which a host's cores were slowed down, 0 to 1.

    From the last sample before to the first sample after; `rows` are a Sampler's. None where the kernel does not say.
    """
    if not rows:
        return None
    first, last = around(rows, begin, end)
    span_s = last["clock_s"] - first["clock_s"]
    throttled_s = last.get("throttled_s", math.nan) - first.get("throttled_s", math.nan)
    if span_s <= 0 or math.isnan(throttled_s):
        return None
    return min(1.0, max(0.0, throttled_s / span_s))
