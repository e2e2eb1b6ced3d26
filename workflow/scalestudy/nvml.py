"""Find NVIDIA's GPUs and read their state by NVML. CUDA is not started.

nvidia-ml-py holds names, values and structures of nvml.h (NVML API Reference Manual, docs.nvidia.com/deploy/nvml-api).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pynvml

THROTTLE_REASONS = {
    pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting: "clocks set by an application",
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "boost of several devices kept alike",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "temperature",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "temperature, by the hardware",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksThrottleReasonDisplayClockSetting: "clocks set for a display",
}
"""Bits of nvmlClocksThrottleReasons* that hold the clock of a busy device down."""

NvmlError = pynvml.NVMLError
"""NVML is absent or does not answer; the message is its own."""


@dataclass(frozen=True)
class NvmlDevice:
    """One GPU as NVML names it."""

    handle: Any
    name: str
    uuid: str
    bus_id: str
    """PCI address as the kernel writes it, `0000:3b:00.0`."""
    memory_bytes: int
    """0 where it does not say: a GPU that shares the memory of its host."""


class Nvml:
    """An open connection to NVML; `close()` ends it. A process may open it again and again, also after a fork."""

    def __init__(self) -> None:
        """Raises NvmlError where the library or the driver is absent."""
        pynvml.nvmlInit()

    def close(self) -> None:
        """End the connection."""
        _answer(pynvml.nvmlShutdown)

    def devices(self) -> list[NvmlDevice]:
        """List all GPUs of the machine in the order of their PCI addresses, which is NVML's."""
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pci = pynvml.nvmlDeviceGetPciInfo(handle)
            name, uuid = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)
            memory = _answer(pynvml.nvmlDeviceGetMemoryInfo, handle)
            address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
            devices.append(NvmlDevice(handle, name, uuid, address, memory.total if memory else 0))
        return devices

    def reading(self, device: NvmlDevice) -> dict[str, float]:
        """Read the state of one device; NaN where it does not answer.

        `utilisation` and `memory_utilisation`: shares of NVML's last sample period, 1/6 to 1 s, in which a kernel ran or
        memory was accessed; `memory_bytes` in use; `processes` that compute on it; `power_w`; `clock_mhz` of the SMs;
        `throttle`: NVML's bits, of which THROTTLE_REASONS are some; `energy_j` since the driver was loaded.
        """
        handle = device.handle
        rates = _answer(pynvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _answer(pynvml.nvmlDeviceGetMemoryInfo, handle)
        processes = _answer(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return {
            "utilisation": rates.gpu / 100 if rates else math.nan,
            "memory_utilisation": rates.memory / 100 if rates else math.nan,
            "memory_bytes": float(memory.used) if memory else math.nan,
            "processes": math.nan if processes is None else float(len(processes)),
            "power_w": _number(pynvml.nvmlDeviceGetPowerUsage, handle) / 1e3,
            "clock_mhz": _number(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "throttle": _number(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            "energy_j": _number(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle) / 1e3,
        }


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of NVML; None where a device does not support it."""
    try:
        return function(*arguments)
    except NvmlError:
        return None


def _number(function: Callable[..., Any], *arguments: Any) -> float:
    value = _answer(function, *arguments)
    return math.nan if value is None else float(value)


def throttled_by(bits: float) -> list[str]:
    """The reasons in a reading's `throttle` that hold a busy device's clock down; empty for NaN."""
    number = 0 if math.isnan(bits) else int(bits)
    return [words for bit, words in THROTTLE_REASONS.items() if number & bit]


def driver_version() -> str:
    """Version of NVIDIA's driver, `580.95.05`; empty without NVML."""
    with suppress(NvmlError), closing(Nvml()):
        return str(pynvml.nvmlSystemGetDriverVersion())
    return ""
