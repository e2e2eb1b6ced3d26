"""Memory of a process on its device, above its use before: its peak, and a limit that is really in force."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch

from scalestudy.errors import Skipped
from scalestudy.measure.allocator import return_freed_memory, trim
from scalestudy.measure.system import sizes

CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to clear_refs, it resets VmHWM (proc(5), since Linux 4.0)."""


class PeakMemory:
    """Peak above the baseline, which is taken when this is made: allocator of a GPU, resident set on a CPU.

    On a CPU, pages of files (libraries, mapped data) are no part of it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        trim()
        self.baseline = (
            torch.cuda.memory_allocated(device) if device.type == "cuda" else sizes("status").get("RssAnon", 0)
        )
        self.counts = False

    def restart(self) -> None:
        """Restart the peak at the present use."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        trim()
        try:
            CLEAR.write_text(RESET_PEAK, encoding="ascii")
            self.counts = True
        except OSError:
            self.counts = False

    def bytes(self) -> int | None:
        """Peak since `restart` above the baseline; None where this system does not report it."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self.baseline
        status = sizes("status")
        if not self.counts or "VmHWM" not in status:
            return None
        of_files = status.get("RssFile", 0) + status.get("RssShmem", 0)
        return max(0, status["VmHWM"] - of_files - self.baseline)


class MemoryLimit:
    """Inside `with`, this process can have `limit_bytes` of its device above its use when this was made.

    More is refused: on a CPU by the kernel (RLIMIT_DATA of setrlimit(2)), on a GPU by torch's allocator. Raises Skipped where
    this system does not report a process's use.
    """

    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        self.device = device
        if device.type == "cuda":
            self.before = torch.cuda.get_device_properties(device).total_memory
            self.most = min(self.before, torch.cuda.memory_reserved(device) + limit_bytes)
            return
        return_freed_memory()
        trim()
        if (used := sizes("status").get("RssAnon")) is None:
            raise Skipped("the memory of a process cannot be limited here: it takes Linux")
        self.before, self.hard = resource.getrlimit(resource.RLIMIT_DATA)
        self.most = used + limit_bytes

    def __enter__(self) -> None:
        if self.device.type == "cuda":
            self._allow(self.most)
            return
        # Data are counted as they are mapped, so that stacks of threads which are never used would count whole.
        now = sizes("status")
        most = now["VmData"] + self.most - now["RssAnon"]
        self._allow(most if self.before == resource.RLIM_INFINITY else min(self.before, most))

    def __exit__(self, *_: Any) -> None:
        self._allow(self.before)

    def _allow(self, most: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(most / self.before, self.device)
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (most, self.hard))
