"""Readers: from a sample's number to its stored bytes, wherever they lie. None imports torch.

    reader.read(sample, epoch) -> buffer

`choose.open_reader` opens the one for a dataset's format and a run's input mode.
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


@dataclass(frozen=True)
class How:
    """How a run wants its data read: plain data, so that it can be handed to a worker process."""

    mode: Mode | None = None
    """None: the one that is the format's own."""
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
    """File in which worker processes find what mode `memory` keeps."""

    @property
    def patience_s(self) -> float:
        """How much longer than from a real storage one sample may take: behind so many bytes that others asked for."""
        return self.latency_ms / 1000 + (QUEUED_MIB / self.mib_per_s if self.mib_per_s else 0.0)

    @property
    def limited(self) -> bool:
        """Whether a slower storage is emulated."""
        return self.mib_per_s is not None or self.latency_ms > 0


@dataclass(frozen=True)
class Recipe:
    """All that is needed to open a dataset as another process did; plain data."""

    manifest: Path
    split: Split
    how: How


def mode_of(how: How, format: str) -> Mode:
    """The input mode; UserError where data of this format does not have it."""
    has = MODES[format]
    if how.mode is None:
        return has[0]
    if how.mode not in has:
        what = f"data of format `{format}` cannot be read in mode `{how.mode}`"
        raise UserError(what, "loader.mode", f"it has {', '.join(has)}")
    return how.mode


class Reader(ABC):
    """Stored bytes of the samples of one split. All methods may be called by several threads at once."""

    @abstractmethod
    def read(self, sample: int, epoch: int) -> Any:
        """The bytes of one sample, as a buffer that stays as it is until this thread reads the next one.

        Raises OSError, EOFError, or another exception of the storage: `where` says which file and bytes.
        """

    @abstractmethod
    def where(self, sample: int) -> tuple[str, str]:
        """File of a sample, and what more to say about its place: `` or `bytes 512 to 9000`."""

    @abstractmethod
    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        """What reading these samples reads of local files: path, offset, bytes."""

    @property
    def files(self) -> list[Path]:
        """The local files whose pages in the page cache matter."""
        return []

    def follow(self, epoch: int, coming: Indices, ahead: int) -> None:  # noqa: B027
        """The samples of this epoch that will be read, in this order; a stream begins to bring them.

        At any time, not more than the next `ahead` of them are asked for.
        """

    def leave(self) -> None:  # noqa: B027
        """No longer bring what was followed; those who wait for it get an error."""

    @property
    def readiness(self) -> dict[str, float]:
        """By queue of this reader, the share of time in which something waited in it."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Let go of files, connections and threads."""


class ThreadLocalBuffer:
    """A buffer per thread: a fresh one for each sample costs its page faults each time."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __call__(self, size: int) -> memoryview:
        """A writable buffer of `size` bytes; more lies behind it, so that a decoder may read a few bytes too far."""
        if len(getattr(self._local, "buffer", b"")) < size + 64:
            self._local.buffer = bytearray(size + size // 2 + 64)
        return memoryview(self._local.buffer)[:size]
