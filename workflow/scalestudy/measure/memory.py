"""Peak memory of a process on its device, above its use before."""

from __future__ import annotations

from pathlib import Path

import torch

from scalestudy.measure.allocator import trim
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
        self.counts = device.type == "cuda"

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
