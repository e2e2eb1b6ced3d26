"""The page cache: filling, dropping, querying and limiting it, all without root.

Works on Linux with file systems that have pages to drop (not tmpfs). It is changed with posix_fadvise
alone, which every user may call who can read the files.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

AnyPath = Path | str
_LIBC = ctypes.CDLL(None, use_errno=True)
_BLOCK = 1 << 20


def warm(files: Iterable[AnyPath]) -> int:
    """Read all files once; returns the bytes read."""
    buffer, total = bytearray(_BLOCK), 0
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                total += count
    return total


def drop(files: Iterable[AnyPath]) -> None:
    """Drop all pages of the files from the page cache.

    What is not yet on disk is written first, else it would stay. Pages that a process has mapped and touched stay.
    """
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            # Only where something stayed: fsync of a clean file still waits for the disk.
            if _resident(descriptor) != 0:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_bytes(files: Iterable[AnyPath]) -> int | None:
    """Bytes of the files in the page cache, in whole pages; None where the kernel does not report them.

    Since 5.2, Linux reports them only to those who own a file or may write it (mincore(2)); to others, all pages
    seem resident.
    """
    total = 0
    for file in files:
        if not (os.access(file, os.W_OK) or Path(file).stat().st_uid == os.geteuid()):
            return None
        descriptor = os.open(file, os.O_RDONLY)
        try:
            resident = _resident(descriptor)
        finally:
            os.close(descriptor)
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

    None where the kernel does not count; on some file systems it counts none (uncounted_reads.py). A child that has
    ended is part of its parent's own count (proc(5), `/proc/pid/io`).
    """
    found = _read_by("self")
    if found is None:
        return None
    for thread in Path("/proc/self/task").iterdir():
        try:
            children = (thread / "children").read_text().split()
        except OSError:
            continue
        found += sum(_read_by(child) or 0 for child in children)
    return found


def _read_by(process: str) -> int | None:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)


class CacheLimit:
    """Lets the files of the data fill only `limit_bytes` of the page cache, to study data larger than memory.

    Emulated: after each read, the least recently read ranges beyond the limit are dropped with posix_fadvise, so a
    pass over more data than the limit reads from storage what real memory pressure would have made it read.

    Not emulated: the kernel's own replacement (two lists, not strictly least recently read), pressure on anything but
    these files, write-back, and memory that is really short. Each process counts only its own reads: ranks that share
    a node take each an equal share of the node's limit. Then never more than the node's limit is resident, but a
    range may be dropped that another rank has just read. Pages that were resident before the first read of this
    process are not counted: drop the files first. Pages that are mapped cannot be dropped: arrays of tensors are
    outside, raw images are read, not mapped. What a loader has read ahead counts from when it is used: in data of few
    batches, much of the next epoch is read before this one's last pages are dropped. Readers turn off the kernel's
    read-ahead, which would fill pages that are not counted.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.resident_bytes = 0
        """Bytes counted as resident now."""
        self.dropped_bytes = 0
        """Bytes dropped so far."""
        self._ranges: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._lock = threading.Lock()

    def touched(self, path: AnyPath, bytes: int, offset: int = 0) -> None:
        """`bytes` of a file were read from `offset` on. A range is known by where it begins. Thread-safe."""
        key = (os.fspath(path), offset)
        with self._lock:
            self.resident_bytes += bytes - self._ranges.pop(key, 0)
            self._ranges[key] = bytes
            beyond = []
            while self.resident_bytes > self.limit_bytes and self._ranges:
                oldest, size = self._ranges.popitem(last=False)
                self.resident_bytes -= size
                self.dropped_bytes += size
                beyond.append((*oldest, size))
        for name, start, size in beyond:
            _drop_range(name, start, size)


def _drop_range(path: str, offset: int, size: int) -> None:
    # The kernel drops only whole pages: round outwards, or neighbours leave the page between them behind.
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    end = -(-(offset + size) // mmap.PAGESIZE) * mmap.PAGESIZE
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
