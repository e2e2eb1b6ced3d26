"""Where a process is: cores, sockets, devices, as the kernel has it. CUDA is not started."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSTEM = Path("/sys")
GPUS = Path("/proc/driver/nvidia/gpus")
"""One folder per GPU of NVIDIA's driver, named by its PCI address."""


@dataclass(frozen=True)
class Cpu:
    """One hardware thread and where it sits."""

    number: int
    core: int
    socket: int


def topology(allowed: Sequence[int], system: Path = SYSTEM) -> list[Cpu]:
    """The allowed hardware threads, socket after socket, core after core; each its own core where nothing is known."""
    found = []
    for number in allowed:
        folder = system / f"devices/system/cpu/cpu{number}/topology"
        try:
            core, socket = (int((folder / name).read_text()) for name in ("core_id", "physical_package_id"))
        except (OSError, ValueError):
            core, socket = number, 0
        found.append(Cpu(number, core, max(0, socket)))
    return sorted(found, key=lambda cpu: (cpu.socket, cpu.core, cpu.number))


def cpu_list(text: str) -> list[int]:
    """`0-3,8` as numbers, the kernel's way to write sets of CPUs."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def near_device(bus_id: str | None, system: Path = SYSTEM) -> list[int]:
    """CPUs on the socket of a PCI device; empty where the kernel does not say (numa_node -1)."""
    if bus_id is None:
        return []
    folder = system / "bus/pci/devices" / bus_id.lower()
    try:
        if int((folder / "numa_node").read_text()) < 0:
            return []
        return cpu_list((folder / "local_cpulist").read_text())
    except (OSError, ValueError):
        return []


def visible_gpus(gpus: Path = GPUS) -> list[str | None]:
    """PCI addresses of the NVIDIA GPUs that this process may use, in CUDA's order (by PCI address); no CUDA is started.

    CUDA_VISIBLE_DEVICES names GPUs by number, or by the beginning of a UUID; the list ends at the first name that is
    not a GPU's, `-1` for example (CUDA C++ Programming Guide, "CUDA Environment Variables"). None is the address of a
    part of a GPU (MIG), which the kernel does not tell.
    """
    found = sorted(gpus.glob("*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [gpu.name for gpu in found]
    addresses: list[str | None] = []
    for name in (part.strip() for part in visible.split(",")):
        if name.isdigit() and int(name) < len(found):
            addresses.append(found[int(name)].name)
        elif name.startswith("GPU-") and (with_uuid := [gpu for gpu in found if _uuid(gpu).startswith(name)]):
            addresses.append(with_uuid[0].name)
        elif name.startswith("MIG-") and found:
            addresses.append(None)
        else:
            break
    return addresses


def _uuid(gpu: Path) -> str:
    """The UUID of a GPU, from its folder in /proc; empty where it is not known."""
    try:
        lines = (gpu / "information").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("GPU UUID")), "")


def bus_ids(count: int) -> list[str | None]:
    """PCI addresses of the first `count` GPUs that this process may use; None where that is not known."""
    found = visible_gpus()
    return [found[index] if index < len(found) else None for index in range(count)]


def placement(bus_id: str | None) -> dict[str, Any]:
    """Where this process is: host, physical cores as `socket:core`, device, and the CPUs on the device's socket."""
    cpus = topology(sorted(os.sched_getaffinity(0)))
    return {
        "host": platform.node(),
        "cores": list(dict.fromkeys(f"{cpu.socket}:{cpu.core}" for cpu in cpus)),
        "device": bus_id,
        "device_cpus": near_device(bus_id),
    }
