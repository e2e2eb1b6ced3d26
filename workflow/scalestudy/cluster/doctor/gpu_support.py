"""Whether the torch that is installed runs on a node's GPUs, and which lock file has one that does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Version = tuple[int, int]


@dataclass(frozen=True)
class Lock:
    """A lock file in envs/, and what its torch needs."""

    name: str
    """As `make setup LOCK=…` takes it; empty: what `make setup` takes by itself."""
    file: str
    cuda: Version
    oldest: Version
    """Lowest compute capability that it holds code for."""

    @property
    def command(self) -> str:
        """What installs it."""
        return f"make setup LOCK={self.name}" if self.name else "make setup"


LOCKS = (
    Lock("", "envs/requirements.txt", (13, 0), (7, 5)),
    Lock("cuda126", "envs/requirements-cuda126.txt", (12, 6), (5, 0)),
)
"""The newest torch first. Architectures of CUDA 12.6: PyTorch, .ci/manywheel/build_cuda.sh; of 13.0: `sm_75` and newer, as the
locked wheel says of itself."""
CODE = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


def problem(torch: Mapping[str, Any], gpu: Mapping[str, Any], locks: Iterable[Lock] = LOCKS) -> tuple[str, str] | None:
    """What keeps torch from this GPU, and what to install; None where nothing does, or nothing is known.

    `torch` has `cuda` (text) and `arch` (list), `gpu` `capability` and `driver_cuda` ([major, minor]), as the probe finds them.
    """
    capability, driver = _version(gpu.get("capability")), _version(gpu.get("driver_cuda"))
    name = gpu.get("name") or "its GPU"
    if driver and not torch.get("cuda") and "error" not in torch:
        what = f"has a GPU, {name}, and torch {torch.get('version')} has no CUDA"
        return what, _remedy(capability, driver, locks)
    built = _version(str(torch.get("cuda") or "").split("."))
    if driver and built and driver[0] < built[0]:
        what = (
            f"has a driver for CUDA {_text(driver)}, and torch {torch.get('version')} needs one for CUDA {built[0]}: "
            "it sees no GPU"
        )
        return what, _remedy(capability, driver, locks)
    archs = torch.get("arch") or []
    if capability and archs and not carries(archs, capability):
        what = (
            f"has {name} (sm_{capability[0]}{capability[1]}), for which torch {torch.get('version')} holds no code "
            f"({' '.join(archs)}): runs would die with `no kernel image is available`"
        )
        return what, _remedy(capability, driver, locks)
    return None


def carries(archs: Iterable[str], capability: Version) -> bool:
    """Whether code for `sm_75`, `compute_90`, … runs on a GPU of this compute capability.

    Binary code runs on the same major version and no lower minor one, PTX (`compute_…`) on that and all later ones:
    CUDA C++ Programming Guide, "Compilation with NVCC", binary and PTX compatibility.
    """
    for found in filter(None, map(CODE.fullmatch, archs)):
        of = int(found[2]), int(found[3])
        if found[1] == "sm" and of[0] == capability[0] and of[1] <= capability[1]:
            return True
        if found[1] == "compute" and of <= capability:
            return True
    return False


def _remedy(capability: Version | None, driver: Version | None, locks: Iterable[Lock]) -> str:
    fits = [
        lock
        for lock in locks
        if (capability is None or lock.oldest <= capability) and (driver is None or lock.cuda[0] <= driver[0])
    ]
    if ready := next((lock for lock in fits if Path(lock.file).is_file()), None):
        return f"take the lock {ready.file}: {ready.command}"
    wanted = f" for sm_{capability[0]}{capability[1]}" if capability else ""
    below = f" of CUDA {driver[0]} or older" if driver else ""
    return f"install a build of torch{below} that holds code{wanted}, or ask for nodes with newer GPUs or drivers"


def _version(value: Any) -> Version | None:
    try:
        major, minor = (int(part) for part in list(value)[:2])
    except (TypeError, ValueError):
        return None
    return major, minor


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
