"""The page cache: filling, dropping and querying it, all without root.

Works on Linux with file systems that have pages to drop (not tmpfs). It is changed with posix_fadvise
alone, which every user may call who can read the files.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)


def warm(files: Iterable[Path | str]) -> int:
    """Read all files once; returns the bytes read."""
    buffer, total = bytearray(1 << 20), 0
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                total += count
    return total


def drop(files: Iterable[Path | str]) -> None:
    """Drop all pages of the files from the page cache.

    What is not yet on disk is written first, else it would stay. Pages that a process has mapped and touched stay.
    """
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            # Only where something stayed: fsync of a clean file still waits for the disk.
            if _resident(stream.fileno()) != 0:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_bytes(files: Iterable[Path | str]) -> int | None:
    """Bytes of the files in the page cache, in whole pages; None where the kernel does not report them.

    Since 5.2, Linux reports them only to those who own a file or may write it (mincore(2)); to others, all pages
    seem resident.
    """
    total = 0
    for file in files:
        if not (os.access(file, os.W_OK) or Path(file).stat().st_uid == os.geteuid()):
            return None
        with open(file, "rb", buffering=0) as stream:
            resident = _resident(stream.fileno())
        if resident is None:
            return None
        total += resident
    return total


def _resident(descriptor: int) -> int | None:
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    with mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        failed = _LIBC.mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
        )
        del view  # a mapping with a view on it cannot be closed
    return None if failed else int((pages & 1).sum()) * mmap.PAGESIZE


def read_bytes() -> int | None:
    """Bytes that this process and its children caused to be read from storage so far; what was cached does not count.

    None where the kernel does not count; on some file systems it counts none (io_accounting.py). A child that has
    ended is part of its parent's own count (proc(5), `/proc/pid/io`).
    """
    own = _read_by("self")
    if own is None:
        return None
    children: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            children += (thread / "children").read_text().split()
    return own + sum(_read_by(child) or 0 for child in children)


def _read_by(process: str) -> int | None:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
    return None
