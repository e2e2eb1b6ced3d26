"""The most memory that a process had on its device, above what it had before."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to clear_refs, it resets VmHWM (proc(5), since Linux 4.0)."""
M_MMAP_THRESHOLD, RETURNED_FROM_BYTES = -3, 128 * 1024
"""mallopt(3): setting the threshold, here to its initial value, keeps it from growing."""


class PeakMemory:
    """Peak above the baseline, which is taken when this is made: allocator of a GPU, resident set on a CPU.

    On a CPU, pages of files (libraries, mapped data) are no part of it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.baseline = torch.cuda.memory_allocated(device) if device.type == "cuda" else _status().get("RssAnon", 0)
        self.counts = device.type == "cuda"

    def restart(self) -> None:
        """Forget the peak so far: the next begins with what is in use now."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        give_back()
        try:
            CLEAR.write_text(RESET_PEAK, encoding="ascii")
            self.counts = True
        except OSError:
            self.counts = False

    def bytes(self) -> int | None:
        """Peak since `restart` above the baseline; None where this system does not report it."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self.baseline
        status = _status()
        if not self.counts or "VmHWM" not in status:
            return None
        of_files = status.get("RssFile", 0) + status.get("RssShmem", 0)
        return max(0, status["VmHWM"] - of_files - self.baseline)


def keep_no_freed_memory() -> None:
    """From now on, have the C library return every block of 128 KiB or more to the system as soon as it is freed.

    By default it keeps what it might need again, more the longer a process runs, and the resident set reflects that
    rather than what is in use. Fresh memory costs time, so this is for runs whose memory is limited.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, RETURNED_FROM_BYTES)
    except AttributeError:
        pass  # not glibc


def give_back() -> None:
    """Let the C library return freed memory to the system, where it can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # not glibc


def _status() -> dict[str, int]:
    """The sizes of /proc/self/status, bytes; empty where there is none."""
    try:
        lines = STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines if line.endswith(" kB")]
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields}
