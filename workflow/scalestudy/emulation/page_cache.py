"""An emulated page cache: no more than so many bytes of the data stay in memory. Without root, by posix_fadvise alone."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from pathlib import Path


class CacheLimit:
    """Lets the files of the data fill only `limit_bytes` of the page cache, to study data larger than memory.

    Emulated: after each read, the least recently read ranges beyond the limit are dropped with posix_fadvise, so a
    pass over more data than the limit reads from storage as much as under real memory pressure.

    Not emulated: the kernel's own replacement (two lists, not strictly least recently read), pressure on anything but
    these files, write-back, and memory that is really short. Each process counts only its own reads: ranks that share
    a node take each an equal share of the node's limit. Then never more than the node's limit is resident, but a
    range may be dropped that another rank has just read. Pages that were resident before the first read of this
    process are not counted: drop the files first. Pages that are mapped cannot be dropped: arrays of tensors are
    outside, raw images are read, not mapped. Batches read ahead count from their use: in data of few
    batches, much of the next epoch is read before this one's last pages are dropped. Readers turn off the kernel's
    read-ahead, which would fill pages that are not counted.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.resident_bytes = 0
        """Bytes counted as resident now."""
        self._ranges: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._lock = threading.Lock()

    def touched(self, path: Path | str, bytes: int, offset: int = 0) -> None:
        """`bytes` of a file were read from `offset` on. A range is known by where it begins. Thread-safe."""
        key = (os.fspath(path), offset)
        with self._lock:
            self.resident_bytes += bytes - self._ranges.pop(key, 0)
            self._ranges[key] = bytes
            beyond = []
            while self.resident_bytes > self.limit_bytes and self._ranges:
                oldest, size = self._ranges.popitem(last=False)
                self.resident_bytes -= size
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
