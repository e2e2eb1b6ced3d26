"""Where a process is: cores, sockets, devices, as the kernel has it. CUDA is not started."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.limits import kernel_text

SYSTEM = Path("/sys")


@dataclass(frozen=True)
class Cpu:
    """One hardware thread and where it sits."""

    number: int
    core: int
    socket: int


def topology(allowed: Sequence[int], system: Path = SYSTEM) -> list[Cpu]:
    """The allowed hardware threads, socket after socket, core after core; each its own core where nothing is known."""
    cpus = []
    for number in allowed:
        folder = system / f"devices/system/cpu/cpu{number}/topology"
        try:
            core, socket = (int((folder / name).read_text()) for name in ("core_id", "physical_package_id"))
        except (OSError, ValueError):
            core, socket = number, 0
        cpus.append(Cpu(number, core, max(0, socket)))
    return sorted(cpus, key=lambda cpu: (cpu.socket, cpu.core, cpu.number))


def cpu_list(text: str) -> list[int]:
    """`0-3,8` as numbers, the kernel's way to write sets of CPUs."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def near_device(bus_id: str | None, system: Path = SYSTEM) -> list[int]:
    """CPUs on the socket of a PCI device; empty where the kernel does not say (numa_node -1)."""
    if bus_id is None:
        return []
    folder = system / "bus/pci/devices" / bus_id.lower()
    return cpu_list(kernel_text(folder / "local_cpulist")) if kernel_text(folder / "numa_node").isdigit() else []


def placement(bus_id: str | None) -> dict[str, Any]:
    """Where this process is: host, physical cores as `socket:core`, device, and the CPUs on the device's socket."""
    cpus = topology(sorted(os.sched_getaffinity(0)))
    return {
        "host": platform.node(),
        "cores": list(dict.fromkeys(f"{cpu.socket}:{cpu.core}" for cpu in cpus)),
        "device": bus_id,
        "device_cpus": near_device(bus_id),
    }
