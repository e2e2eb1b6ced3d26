"""Metrics of a run's accelerators by NVML: utilisation, memory, power, clock, throttling, energy."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np

from scalestudy.nvml import Nvml, NvmlError, throttled_by

Row = dict[str, float]
MIN_SPAN_S = 0.5
"""Of less time than this, power that is averaged over up to a second says little."""
ON_EACH: tuple[tuple[str, str, Callable[[list[float]], float]], ...] = (
    ("device_utilisation", "utilisation", fmean),
    ("device_memory_utilisation", "memory_utilisation", fmean),
    ("device_memory_bytes", "memory_bytes", sum),
    ("device_processes", "processes", sum),
    ("device_power_w", "power_w", sum),
    ("device_clock_mhz", "clock_mhz", fmean),
    ("device_energy_j", "energy_j", sum),
)


class DeviceMeter:
    """Readings of a run's devices on one host; empty where there is nothing to read, and `said` tells why."""

    def __init__(self, addresses: Sequence[str | None]) -> None:
        """`addresses` are the PCI addresses of the devices that the run uses here; none where it uses no device."""
        self.unmeasured = ""
        self._nvml: Nvml | None = None
        if not addresses:
            return
        try:
            self._nvml = Nvml()
            by_address = {device.bus_id: device for device in self._nvml.devices()}
            distinct_addresses = dict.fromkeys(addresses)
            self._devices = [by_address[address] for address in distinct_addresses if address in by_address]
            count = len(distinct_addresses) - len(self._devices)
            lack = f"NVML does not know {'1 device' if count == 1 else f'{count} devices'}" if count else ""
        except NvmlError as error:
            lack = str(error)
        if lack:
            self.unmeasured = f"utilisation, power and energy of the devices are not measured: {lack}"
            self.close()

    def close(self) -> None:
        """End the connection to NVML."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def row(self) -> Row:
        """Their number, means of shares and clocks, sums of bytes, processes, power and energy, all bits of throttle reasons.

        Empty where nothing is measured; NaN where one of the devices does not answer.
        """
        if self._nvml is None:
            return {}
        readings = [self._nvml.reading(device) for device in self._devices]
        bits = [each["throttle"] for each in readings]
        all_answered = not any(map(math.isnan, bits))
        throttle = float(functools.reduce(operator.or_, map(int, bits))) if all_answered else math.nan
        row = {"devices": float(len(readings)), "device_throttle": throttle}
        return row | {name: whole([each[part] for each in readings]) for name, part, whole in ON_EACH}


def energy_j(rows: Sequence[Mapping[str, float]], begin: float, end: float) -> float | None:
    """Joules that the devices of one host took between two clocks: by their energy counters, interpolated between
    samples; where a device has none, sampled power by the trapezoid rule. None where the samples do not say.
    """
    rows = [row for row in rows if "devices" in row]
    if end - begin < MIN_SPAN_S or len(rows) < 2 or not rows[0]["clock_s"] <= begin < end <= rows[-1]["clock_s"]:
        return None
    clocks, counters, power = (
        np.array([row[name] for row in rows]) for name in ("clock_s", "device_energy_j", "device_power_w")
    )
    if not np.isnan(counters).any():
        return float(np.diff(np.interp([begin, end], clocks, counters))[0])
    if np.isnan(power).any():
        return None
    points = np.array([begin, *clocks[(begin < clocks) & (clocks < end)], end])
    return float(np.trapezoid(np.interp(points, clocks, power), points))


def samples_of(rows: Sequence[Mapping[str, float]], column: str, begin: float, end: float) -> list[float]:
    """A column's samples between two clocks; none where there is none, or a device does not tell."""
    samples = [row[column] for row in rows if column in row and begin <= row["clock_s"] <= end]
    return [] if any(map(math.isnan, samples)) else samples


def throttling(rows: Sequence[Mapping[str, float]], begin: float, end: float) -> list[str]:
    """Reasons that held a device's clock down in at least a tenth of the samples between two clocks, with their shares."""
    inside = [row["device_throttle"] for row in rows if "devices" in row and begin <= row["clock_s"] <= end]
    counts = Counter(reason for bits in inside for reason in throttled_by(bits))
    shares = {reason: count / len(inside) for reason, count in counts.items()}
    return [f"{reason} ({share:.0%} of samples)" for reason, share in shares.items() if share >= 0.1]
