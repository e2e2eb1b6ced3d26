"""Metrics of a run's accelerators by NVML: utilisation, memory, power, clock, throttling, energy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from scalestudy.nvml import Nvml, NvmlError, throttled_by

Row = dict[str, float]
COLUMNS = ("devices", "device_utilisation", "device_memory_utilisation", "device_memory_bytes", "device_power_w",
           "device_clock_mhz", "device_throttle", "device_energy_j")  # fmt: skip
"""Of a row: means over devices of shares and clocks, sums of bytes, power and energy, all bits of what throttles."""
ERRORS = ("memory_errors_corrected", "memory_errors_uncorrected", "remapped_rows", "remap_faults")
"""Of the last row: sums over devices, see `Nvml.errors`."""
LEAST_SPAN_S = 0.5
"""Of less time than this, power that is averaged over up to a second says little."""
ON_EACH: tuple[tuple[str, str, Callable[[Iterable[float]], float]], ...] = (
    ("device_utilisation", "utilisation", lambda values: _mean(list(values))),
    ("device_memory_utilisation", "memory_utilisation", lambda values: _mean(list(values))),
    ("device_memory_bytes", "memory_bytes", sum),
    ("device_power_w", "power_w", sum),
    ("device_clock_mhz", "clock_mhz", lambda values: _mean(list(values))),
    ("device_energy_j", "energy_j", sum),
)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class DeviceMeter:
    """Readings of a run's devices on one host; empty where there is nothing to read, and `said` tells why."""

    def __init__(self, addresses: Sequence[str | None]) -> None:
        """`addresses` are the PCI addresses of the devices that the run uses here; none where it uses no device."""
        self.said = ""
        self._nvml: Nvml | None = None
        if not addresses:
            return
        try:
            self._nvml = Nvml()
            known = {device.bus_id: device for device in self._nvml.devices()}
        except NvmlError as error:
            self.said = f"utilisation, power and energy of the devices are not measured: {error}"
            self.close()
            return
        wanted = dict.fromkeys(addresses)
        self._devices = [known[address] for address in wanted if address in known]
        if len(self._devices) < len(wanted):
            count = len(wanted) - len(self._devices)
            which = "1 device" if count == 1 else f"{count} devices"
            self.said = f"utilisation, power and energy of the devices are not measured: NVML does not know {which}"
            self.close()

    def close(self) -> None:
        """End the connection to NVML."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def row(self) -> Row:
        """COLUMNS of this moment; empty where nothing is measured. NaN where one of the devices does not answer."""
        if self._nvml is None:
            return {}
        readings = [self._nvml.reading(device) for device in self._devices]
        bits = [each["throttle"] for each in readings]
        known = not any(map(math.isnan, bits))
        row = {"devices": float(len(readings)), "device_throttle": float(_all_bits(bits)) if known else math.nan}
        return row | {name: whole(each[part] for each in readings) for name, part, whole in ON_EACH}

    def errors(self) -> Row:
        """ERRORS of this moment; empty where nothing is measured. NaN where one of the devices does not answer."""
        if self._nvml is None:
            return {}
        counted = [self._nvml.errors(device) for device in self._devices]
        return {name: sum(each[name] for each in counted) for name in ERRORS}


def errors_of(hosts: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float | None]:
    """ERRORS over the devices of all hosts, from each one's samples; None where a host or a device does not tell."""
    last = [next((row for row in reversed(rows) if ERRORS[0] in row), {}) for rows in hosts]
    found: dict[str, float | None] = {}
    for name in ERRORS:
        values = [row.get(name, math.nan) for row in last]
        found[name] = None if not values or any(map(math.isnan, values)) else sum(values)
    return found


def _all_bits(values: Iterable[float]) -> int:
    found = 0
    for value in values:
        found |= int(value)
    return found


def energy_j(rows: Sequence[Mapping[str, float]], begin: float, end: float) -> float | None:
    """Joules that the devices of one host took between two clocks: by their energy counters, interpolated between
    samples; where a device has none, sampled power by the trapezoid rule. None where the samples do not say.
    """
    rows = [row for row in rows if "devices" in row]
    if end - begin < LEAST_SPAN_S or len(rows) < 2 or not rows[0]["clock_s"] <= begin < end <= rows[-1]["clock_s"]:
        return None
    clocks = [row["clock_s"] for row in rows]
    counters = [row["device_energy_j"] for row in rows]
    if not any(map(math.isnan, counters)):
        return _at(clocks, counters, end) - _at(clocks, counters, begin)
    power = [row["device_power_w"] for row in rows]
    if any(map(math.isnan, power)):
        return None
    inside = [(clock, watts) for clock, watts in zip(clocks, power, strict=True) if begin < clock < end]
    points = [(begin, _at(clocks, power, begin)), *inside, (end, _at(clocks, power, end))]
    pairs = itertools.pairwise(points)
    return sum((later - sooner) * (first + second) / 2 for (sooner, first), (later, second) in pairs)


def _at(clocks: Sequence[float], values: Sequence[float], clock: float) -> float:
    """Linear interpolation between samples."""
    after = next(index for index, each in enumerate(clocks) if each >= clock)
    if after == 0 or clocks[after] == clock:
        return values[after]
    share = (clock - clocks[after - 1]) / (clocks[after] - clocks[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])


def mean_of(rows: Sequence[Mapping[str, float]], column: str, begin: float, end: float) -> float | None:
    """Mean of a column's samples between two clocks; None where there is none, or a device does not tell."""
    found = [row[column] for row in rows if column in row and begin <= row["clock_s"] <= end]
    return None if not found or any(map(math.isnan, found)) else _mean(found)


def throttling(rows: Sequence[Mapping[str, float]], begin: float, end: float) -> list[str]:
    """Reasons that held a device's clock down in at least a tenth of the samples between two clocks, with their shares."""
    inside = [row["device_throttle"] for row in rows if "devices" in row and begin <= row["clock_s"] <= end]
    counts: dict[str, int] = {}
    for reason in (reason for bits in inside for reason in throttled_by(bits)):
        counts[reason] = counts.get(reason, 0) + 1
    return [
        f"{reason} ({count / len(inside):.0%} of samples)"
        for reason, count in counts.items()
        if count * 10 >= len(inside)
    ]
