"""Samples read from storage once, and from memory afterwards."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.load.readers import Indices, Reader
from scalestudy.errors import UserError


def available_bytes() -> int:
    """Memory available without swapping, as the kernel estimates it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


class MemoryReader(Reader):
    """Keeps every sample that was read, in one anonymous file that worker processes share.

    Each rank has its own. Raises UserError where the data does not fit into the memory that is free now.
    """

    def __init__(self, storage: Reader, sizes: NDArray[np.int64], place: str | None) -> None:
        self._storage = storage
        self._offsets = np.concatenate([[len(sizes)], len(sizes) + np.cumsum(sizes)])
        total = int(self._offsets[-1])
        if place is None and total > available_bytes():
            what = f"{total / 2**20:,.0f} MiB do not fit into the {available_bytes() / 2**20:,.0f} MiB of free memory"
            raise UserError(what, "loader.mode: memory", "set another mode, or lower `data.scale`")
        self._descriptor = os.open(place, os.O_RDWR) if place else os.memfd_create("scalestudy-samples")
        if not place:
            os.ftruncate(self._descriptor, total)
        self._memory = memoryview(mmap.mmap(self._descriptor, total))
        # Whether a sample is present; written after its bytes. Workers that read the same sample write the same bytes.
        self._there = self._memory[: len(sizes)]

    @property
    def place(self) -> str:
        """Path by which another process opens the same memory while this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def read(self, sample: int, epoch: int) -> Any:
        kept = self._memory[self._offsets[sample] : self._offsets[sample + 1]]
        if not self._there[sample]:
            kept[:] = self._storage.read(sample, epoch)
            self._there[sample] = 1
        return kept

    def where(self, sample: int) -> tuple[str, str]:
        return self._storage.where(sample)

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        return self._storage.ranges(indices)

    @property
    def files(self) -> list[Path]:
        return self._storage.files

    def close(self) -> None:
        self._storage.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
