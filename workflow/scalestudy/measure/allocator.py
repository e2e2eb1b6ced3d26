"""The C library's allocator: set up in every process of a run before its first tensor, and named in its instrument.

As it is shipped, glibc maps each block above a threshold anew and unmaps it when it is freed, so that a training with
large batches spends its time on page faults (docs/measured/allocator.txt). Environment variables come too late for
processes that are forked, mallopt(3) does not.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Parameters of mallopt(3)."""
KEEP = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}
"""No block is mapped by itself, and no memory is returned to the system."""
RETURN = {M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 128 * 1024, M_TRIM_THRESHOLD: 128 * 1024}
"""The initial values, which setting them keeps from growing."""
OTHERS = ("jemalloc", "tcmalloc", "mimalloc")
MAPS = Path("/proc/self/maps")

_of_process = {"name": "not set"}


def name() -> str:
    """The allocator of this process, as instruments name it."""
    return _of_process["name"]


def keep_freed_memory() -> None:
    """Have the allocator keep freed blocks for the next step. One that the user chose or set by variables stays as it is."""
    maps = MAPS.read_text(encoding="utf-8", errors="replace")
    chosen = next((other for other in OTHERS if f"lib{other}" in maps), None)  # loaded in place of the C library's
    variables = [f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("MALLOC_")]
    if "glibc.malloc" in (tunables := os.environ.get("GLIBC_TUNABLES", "")):
        variables.append(tunables)
    if chosen is not None:
        _of_process["name"] = chosen
    elif variables:
        _of_process["name"] = f"{_library()}, {' '.join(variables)}"
    else:
        _set(KEEP, "freed memory kept")


def return_freed_memory() -> None:
    """Have the allocator return every block of 128 KiB or more to the system as soon as it is freed.

    Otherwise the resident set includes freed memory. Fresh memory costs time, so this is
    for runs with limited memory.
    """
    _set(RETURN, "freed memory returned")


def trim() -> None:
    """Let the allocator return freed memory to the system once."""
    ctypes.CDLL(None).malloc_trim(0)


def _set(values: dict[int, int], effect: str) -> None:
    """Set glibc's allocator up, and name it with the effect where it took all values."""
    taken = [ctypes.CDLL(None).mallopt(parameter, value) for parameter, value in values.items()]
    _of_process["name"] = f"{_library()}, {effect}" if all(taken) else _library()


def _library() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION") or "C library"
