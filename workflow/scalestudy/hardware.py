"""Which accelerators this process may use. CUDA is not started here, and torch is not imported: it is asked elsewhere."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalestudy.limits import VISIBLE
from scalestudy.nvml import Nvml, NvmlDevice, NvmlError

DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg", "accel/accel*")
"""In /dev: NVIDIA's driver, AMD's, that of Windows, and the kernel's class of compute accelerators."""
ON_PURPOSE = "set `device: cpu`, or hide what is here (CUDA_VISIBLE_DEVICES=-1), to measure the CPU on purpose"
ROCM = ("rocm-smi", "amd-smi")
PROGRAMS = ("nvidia-smi", *ROCM, "xpu-smi")
UNUSABLE = "the driver of one is here, and torch finds none that it can use"
ASK_S = 120
QUESTION = """
import json, torch
kind, devices = "", []
accelerator = getattr(torch, "accelerator", None)
if accelerator is not None and accelerator.is_available():
    kind = accelerator.current_accelerator().type
elif torch.cuda.is_available():
    kind = "cuda"
if kind == "cuda":
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        parts = [getattr(p, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        address = None if None in parts else "%04x:%02x:%02x.0" % tuple(parts)
        devices.append({"name": p.name, "memory_bytes": p.total_memory, "bus_id": address})
elif kind:
    devices = [{"name": kind, "memory_bytes": 0, "bus_id": None} for _ in range(accelerator.device_count())]
# Not torch.cuda.get_arch_list(), which is empty where the driver is too old for this torch.
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
about = {"version": torch.__version__, "cuda": torch.version.cuda}
about["arch"] = flags.split() if flags else torch.cuda.get_arch_list()
if kind == "cuda" and hasattr(torch._C, "_nccl_version"):
    about["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps({"kind": kind, "devices": devices, **about}))
"""
"""What torch says of its accelerators, of which a GPU of AMD is one of `cuda`, and of itself."""


@dataclass(frozen=True)
class Device:
    """One accelerator, in the order in which torch numbers them."""

    name: str
    """As its vendor's driver has it; empty for a part of a GPU (MIG)."""
    memory_bytes: int
    bus_id: str | None
    """PCI address as the kernel writes it; None where it is not told."""


@dataclass(frozen=True)
class Accelerators:
    """Accelerators of a process."""

    kind: str
    """torch's name of their type: `cuda` for NVIDIA and AMD, `xpu`, …; empty: there is none."""
    devices: tuple[Device, ...]
    source: str
    """Who says so."""
    unusable: str = ""
    """Why what is here cannot be used, where its driver is here and it should be usable; empty where nothing is wrong."""

    @property
    def count(self) -> int:
        """How many a run can use: runs use those of type `cuda`."""
        return len(self.devices) if self.kind == "cuda" else 0

    @property
    def refusal(self) -> str:
        """Why runs cannot use what is here; empty where they can, and where nothing is here."""
        if self.unusable:
            return f"this machine has an accelerator, but it cannot be used: {self.unusable}"
        is_other = self.kind and not self.count
        return f"the accelerator here is one of type `{self.kind}`, which runs cannot use" if is_other else ""


def accelerators() -> Accelerators:
    """The accelerators that are visible here: by NVML where it answers, else by torch in a process of its own.

    Torch is asked only where a driver or its tool shows that there is something.
    """
    return _accelerators(tuple(os.environ.get(name) for name in VISIBLE))


@functools.cache
def _accelerators(hidden: tuple[str | None, ...]) -> Accelerators:
    try:
        nvml = Nvml()
    except NvmlError as error:
        if hidden[0] in ("", "-1"):
            return Accelerators("", (), f"{VISIBLE[0]} hides all")
        if not is_any_there():
            return Accelerators("", (), "there is no driver of one")
        found_by_torch = ask_torch()
        is_lost = not found_by_torch.kind and has_gpu_to_train_on()
        return replace(found_by_torch, unusable=f"{error}; {found_by_torch.source}") if is_lost else found_by_torch
    try:
        nvml_devices = nvml.devices()
    except NvmlError as error:
        return Accelerators("", (), str(error), unusable=str(error))
    finally:
        nvml.close()
    devices = visible(nvml_devices, hidden[0])
    source = "NVML" if devices or not nvml_devices else f"{VISIBLE[0]} hides all {len(nvml_devices)}"
    return Accelerators("cuda" if devices else "", tuple(devices), source)


def is_any_there() -> bool:
    """Whether a driver of an accelerator, or a tool of one, is on this machine."""
    return any(any(Path("/dev").glob(pattern)) for pattern in DEVICE_FILES) or any(map(shutil.which, PROGRAMS))


def has_gpu_to_train_on(devices: Path = Path("/dev")) -> bool:
    """Whether the driver of a GPU is here that people train on: of NVIDIA, or of AMD with a tool of ROCm.

    AMD's driver alone may be that of a GPU inside a processor.
    """
    has_rocm = (devices / "kfd").exists() and any(map(shutil.which, ROCM))
    return has_rocm or any(devices.glob(DEVICE_FILES[0]))


def visible(found: Sequence[NvmlDevice], named: str | None) -> list[Device]:
    """Of the GPUs by PCI address, those that `named`, CUDA_VISIBLE_DEVICES, leaves visible, in its order.

    It names GPUs by number, or by the beginning of a UUID; the list ends at the first name that is not a GPU's, `-1` for
    example (CUDA C++ Programming Guide, "CUDA Environment Variables"). A part of a GPU (MIG) has no name and address.
    """
    everything = sorted(found, key=lambda device: device.bus_id)
    if named is None:
        return [Device(device.name, device.memory_bytes, device.bus_id) for device in everything]
    chosen: list[Device] = []
    for name in (part.strip() for part in named.split(",")):
        matches = [device for device in everything if name.startswith("GPU-") and device.uuid.startswith(name)]
        if name.isdigit():
            matches = everything[int(name) : int(name) + 1]
        if name.startswith("MIG-") and everything:
            chosen.append(Device("", 0, None))
        elif matches:
            chosen.append(Device(matches[0].name, matches[0].memory_bytes, matches[0].bus_id))
        else:
            break
    return chosen


def torch_here() -> dict[str, Any]:
    """What torch says to QUESTION, in a process of its own: it may start a driver, take seconds, or crash.

    Where it cannot say, `error` is why.
    """
    command = [sys.executable, "-c", QUESTION]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True)
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer
    except subprocess.CalledProcessError as error:
        what = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        what = f"no answer in {ASK_S} s"
    except (ValueError, IndexError) as error:
        what = str(error)
    return {"error": what, "kind": "", "devices": []}


def ask_torch() -> Accelerators:
    """The accelerators that torch finds."""
    answer = torch_here()
    source = f"torch could not say: {answer['error']}" if "error" in answer else "torch" if answer["kind"] else UNUSABLE
    return Accelerators(answer["kind"], tuple(Device(**each) for each in answer["devices"]), source)


def bus_ids(count: int) -> list[str | None]:
    """PCI addresses of the first `count` accelerators; None where one is not known. More than there are begin again."""
    addresses = [device.bus_id for device in accelerators().devices]
    return [addresses[index % len(addresses)] if addresses else None for index in range(count)]
