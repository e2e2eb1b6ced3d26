"""NVIDIA's management library (NVML) by ctypes: which GPUs there are, and what they do now. CUDA is not started.

The names, values and structures are those of nvml.h of the NVML API Reference Manual (docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
NAME_BYTES = 96
"""NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE."""
SM_CLOCK = 1
"""NVML_CLOCK_SM."""
CORRECTED, UNCORRECTED = 0, 1
"""NVML_MEMORY_ERROR_TYPE_*."""
SINCE_LOADED = 0
"""NVML_VOLATILE_ECC: since the driver was loaded."""
DEVICE_MEMORY = 2
"""NVML_MEMORY_LOCATION_DRAM."""
IDLE = 0x1
"""nvmlClocksThrottleReasonGpuIdle: the clock is low because nothing runs."""
THROTTLE_REASONS = {
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "boost of several devices kept alike",
    0x20: "temperature",
    0x40: "temperature, by the hardware",
    0x80: "power brake",
    0x100: "clocks set for a display",
}
"""Bits of nvmlClocksThrottleReasons* that hold the clock of a busy device down."""

COMPUTE_MODES = {
    1: "compute mode exclusive to one thread: processes cannot share the device",
    2: "compute mode prohibited: no process can compute on the device",
    3: "compute mode exclusive to one process: ranks cannot share the device, and no other program can use it during a run",
}
"""nvmlComputeMode_t; 0 is the usual one."""
MIG = "MIG is on: what a process sees is a part of the device"


class NvmlError(Exception):
    """NVML is not here, or does not answer; the message says which."""


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilisation(ctypes.Structure):
    """nvmlUtilization_t, percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@dataclass(frozen=True)
class NvmlDevice:
    """One GPU as NVML names it."""

    handle: Any
    name: str
    uuid: str
    bus_id: str
    """PCI address as the kernel writes it, `0000:3b:00.0`."""
    memory_bytes: int


class Nvml:
    """An open connection to NVML; `close()` ends it. A process may open it again and again, also after a fork."""

    def __init__(self, library: str | None = None) -> None:
        """Raises NvmlError where the library or the driver is not there."""
        name = library or LIBRARY
        try:
            self._library = ctypes.CDLL(name)
        except OSError:
            raise NvmlError(f"there is no {name}") from None
        self._call("nvmlInit_v2")

    def close(self) -> None:
        """Give NVML back."""
        self._library.nvmlShutdown()

    def devices(self) -> list[NvmlDevice]:
        """All GPUs of the machine, in NVML's order, that of PCI addresses."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._device(index) for index in range(count.value)]

    def _device(self, index: int) -> NvmlDevice:
        handle, pci, memory = ctypes.c_void_p(), _Pci(), _Memory()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        return NvmlDevice(
            handle,
            self._text("nvmlDeviceGetName", handle),
            self._text("nvmlDeviceGetUUID", handle),
            address,
            memory.total,
        )

    def _text(self, name: str, handle: Any) -> str:
        buffer = ctypes.create_string_buffer(NAME_BYTES)
        self._call(name, handle, buffer, ctypes.c_uint(NAME_BYTES))
        return buffer.value.decode(errors="replace")

    def reading(self, device: NvmlDevice) -> dict[str, float]:
        """What one device does now; NaN is what it does not tell.

        `utilisation` and `memory_utilisation`: shares of NVML's last sample period, 1/6 to 1 s, in which a kernel ran or
        memory was accessed; `memory_bytes` in use; `power_w`; `clock_mhz` of the SMs; `throttle`: the bits of
        THROTTLE_REASONS and IDLE; `energy_j` since the driver was loaded.
        """
        handle = device.handle
        rates, memory = _Utilisation(), _Memory()
        known_rates = self._answers("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
        known_memory = self._answers("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return {
            "utilisation": rates.gpu / 100 if known_rates else math.nan,
            "memory_utilisation": rates.memory / 100 if known_rates else math.nan,
            "memory_bytes": float(memory.used) if known_memory else math.nan,
            "power_w": self._number("nvmlDeviceGetPowerUsage", handle, ctypes.c_uint) / 1e3,
            "clock_mhz": self._number("nvmlDeviceGetClockInfo", handle, ctypes.c_uint, ctypes.c_uint(SM_CLOCK)),
            "throttle": self._number("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.c_ulonglong),
            "energy_j": self._number("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.c_ulonglong) / 1e3,
        }

    def modes(self, device: NvmlDevice) -> list[str]:
        """What is unusual in how one device is set up, a sentence each: MIG, compute mode. Nothing is ever changed."""
        current, pending, mode = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        has_mig = self._answers("nvmlDeviceGetMigMode", device.handle, ctypes.byref(current), ctypes.byref(pending))
        known = self._answers("nvmlDeviceGetComputeMode", device.handle, ctypes.byref(mode))
        said = [MIG] if has_mig and current.value else []
        return said + ([COMPUTE_MODES[mode.value]] if known and mode.value in COMPUTE_MODES else [])

    def errors(self, device: NvmlDevice) -> dict[str, float]:
        """Memory errors that one device has counted; NaN is what it does not tell.

        `memory_errors_corrected` and `memory_errors_uncorrected`, of its memory, since the driver was loaded; `remapped_rows`
        in its life; `remap_faults`: 1 where a row waits for the next reset to be remapped, or could not be, else 0.
        """
        counted = {"memory_errors_corrected": CORRECTED, "memory_errors_uncorrected": UNCORRECTED}
        found = {
            name: self._number(
                "nvmlDeviceGetMemoryErrorCounter", device.handle, ctypes.c_ulonglong,
                ctypes.c_uint(kind), ctypes.c_uint(SINCE_LOADED), ctypes.c_uint(DEVICE_MEMORY),
            )
            for name, kind in counted.items()
        }  # fmt: skip
        numbers = [ctypes.c_uint() for _ in range(4)]
        known = self._answers("nvmlDeviceGetRemappedRows", device.handle, *map(ctypes.byref, numbers))
        after_corrected, after_uncorrected, pending, failed = (each.value if known else math.nan for each in numbers)
        found["remapped_rows"] = float(after_corrected + after_uncorrected)
        found["remap_faults"] = float(bool(pending or failed)) if known else math.nan
        return found

    def _number(self, name: str, handle: Any, kind: Callable[[], Any], *more: Any) -> float:
        value = kind()
        return float(value.value) if self._answers(name, handle, *more, ctypes.byref(value)) else math.nan

    def _answers(self, name: str, *arguments: Any) -> bool:
        """Whether a function is there and succeeds: not every device supports every one."""
        function = getattr(self._library, name, None)
        return function is not None and bool(function(*arguments) == 0)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise NvmlError(f"{LIBRARY} has no {name}")
        status = function(*arguments)
        if status:
            raise NvmlError(f"{name}: {self._said(status)}")

    def _said(self, status: int) -> str:
        try:
            text = self._library.nvmlErrorString
            text.restype = ctypes.c_char_p
            return str(text(status).decode())
        except (AttributeError, ValueError):
            return f"status {status}"


def throttled_by(bits: float) -> list[str]:
    """The reasons in a reading's `throttle` that hold a busy device's clock down; empty for NaN."""
    number = 0 if math.isnan(bits) else int(bits)
    return [words for bit, words in THROTTLE_REASONS.items() if number & bit]


def unusual_modes(bus_ids: Collection[str | None] | None = None) -> list[str]:
    """What is unusual in how the GPUs at these addresses, or all, are set up; each sentence once. Empty without NVML."""
    try:
        nvml = Nvml()
    except NvmlError:
        return []
    try:
        wanted = [device for device in nvml.devices() if bus_ids is None or device.bus_id in bus_ids]
        return list(dict.fromkeys(said for device in wanted for said in nvml.modes(device)))
    except NvmlError:
        return []
    finally:
        nvml.close()
