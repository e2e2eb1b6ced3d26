"""Readers: from a sample's number to its stored bytes, wherever they lie. None imports torch.

    reader.read(sample, epoch) -> buffer

`image_reader.open_reader` opens the one for a dataset's format and a run's input mode.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.manifest import Split
from scalestudy.data.modes import MODES, Mode
from scalestudy.errors import UserError

Indices = NDArray[np.int64]
REMEDY = "replace it, or delete the manifest and prepare the data again"


QUEUED_MIB = 64.0
"""Data that other workers may have requested from an emulated storage before a sample."""


@dataclass(frozen=True)
class ReadOptions:
    """How a run reads its data; plain data, so that it can be sent to a worker process."""

    mode: Mode | None = None
    """None: the first mode of the format."""
    origin: str | None = None
    """A folder or an http(s) address that holds the same files as the bulk."""
    shuffle_buffer: int = 1000
    """Samples from which a stream draws the next."""
    mib_per_s: float | None = None
    """Rate of an emulated storage."""
    latency_ms: float = 0.0
    """Latency per request of an emulated storage."""
    place: str | None = None
    """File through which the processes of a node share the emulated storage."""
    memory: str | None = None
    """File of the samples that mode `memory` keeps, which worker processes share."""

    @property
    def patience_s(self) -> float:
        """How much longer than from a real storage one sample may take: others may have requested QUEUED_MIB before."""
        return self.latency_ms / 1000 + (QUEUED_MIB / self.mib_per_s if self.mib_per_s else 0.0)

    @property
    def limited(self) -> bool:
        """Whether a slower storage is emulated."""
        return self.mib_per_s is not None or self.latency_ms > 0


@dataclass(frozen=True)
class DatasetHandle:
    """Everything that another process needs to open the same dataset; plain data."""

    manifest: Path
    split: Split
    how: ReadOptions


def mode_of(how: ReadOptions, format: str) -> Mode:
    """The input mode; UserError where data of this format does not have it."""
    has = MODES[format]
    if how.mode is None:
        return has[0]
    if how.mode not in has:
        what = f"data of format `{format}` cannot be read in mode `{how.mode}`"
        raise UserError(what, "loader.mode", f"set it to one of: {', '.join(has)}")
    return how.mode


class Reader(ABC):
    """Stored bytes of the samples of one split. All methods may be called by several threads at once."""

    @abstractmethod
    def read(self, sample: int, epoch: int) -> Any:
        """The bytes of one sample, as a buffer that stays as it is until this thread reads the next one.

        Raises OSError, EOFError, or another exception of the storage; `where` gives the file and the bytes.
        """

    @abstractmethod
    def where(self, sample: int) -> tuple[str, str]:
        """File of a sample, and its place in it: `bytes 512 to 9000`, or empty for a whole file."""

    @abstractmethod
    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        """Path, offset and bytes of what is read of local files for these samples."""

    @property
    def files(self) -> list[Path]:
        """The local files whose pages in the page cache matter."""
        return []

    def follow(self, epoch: int, coming: Indices, ahead: int) -> None:  # noqa: B027
        """Announce the samples of this epoch that will be read, in this order; a stream begins to fetch them.

        At any time, at most the next `ahead` of them are requested.
        """

    def leave(self) -> None:  # noqa: B027
        """Stop fetching; readers that wait for a sample get an error."""

    @property
    def readiness(self) -> dict[str, float]:
        """By queue of this reader, the share of time in which it was not empty."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Close files and connections, and end threads."""


class ThreadLocalBuffer:
    """A reused buffer per thread: a new one for each sample would cost page faults each time."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __call__(self, size: int) -> memoryview:
        """A writable buffer of `size` bytes; more memory follows it, so that a decoder may read a few bytes too far."""
        if len(getattr(self._local, "buffer", b"")) < size + 64:
            self._local.buffer = bytearray(size + size // 2 + 64)
        return memoryview(self._local.buffer)[:size]
