"""Readers: from a sample's number to its stored bytes, wherever they lie. None imports torch.

    reader.read(sample, epoch) -> buffer

`images` opens the one for a dataset's format and a run's input mode; `stream` has one more.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from scalestudy.data.decode.kernel import PICTURE
from scalestudy.data.index import Index
from scalestudy.data.manifest import database_key, replace_remedy
from scalestudy.data.stores import FolderStore, Store
from scalestudy.errors import UserError

if TYPE_CHECKING:
    from scalestudy.emulation.storage import Throttle

Indices = NDArray[np.int64]


class IndexedReader:
    """Reads each sample of a split by itself, in any order: a file, or a range of a shard, as the index says.

    All methods may be called by several threads at once.
    """

    def __init__(self, store: Store, throttle: Throttle | None, index: Index, shards: list[str] | None) -> None:
        """`shards`: their files, as the index counts them; None where each sample is a file."""
        self.store, self._throttle, self._index, self._shards = store, throttle, index, shards
        self.sizes, whole_files = index.bytes, np.broadcast_to(np.int64(0), index.bytes.shape)
        self.starts = index.start if len(index.start) else whole_files

    def name(self, sample: int) -> str:
        """The file of a sample."""
        return self._index.path(sample) if self._shards is None else self._shards[self._index.shard[sample]]

    def read(self, sample: int, epoch: int) -> Any:
        """The bytes of one sample, in memory of its own.

        Raises OSError, EOFError, or another exception of the storage; `where` gives the file and the bytes.
        """
        size = int(self.sizes[sample])
        out = memoryview(bytearray(size + 64))[:size]  # a decoder may read a few bytes too far
        self.fetch(self.name(sample), int(self.starts[sample]), out)
        return out

    def places(self, indices: Indices) -> tuple[NDArray[np.void], bytes] | None:
        """Where in local files these samples lie, and the files' names, for the kernel; None where they are elsewhere.

        OSError where a file cannot be opened.
        """
        if self._throttle is not None or not isinstance(self.store, FolderStore):
            return None
        places = np.zeros(len(indices), PICTURE)
        places["start"], places["size"], places["name"] = self.starts[indices], self.sizes[indices], -1
        names = bytearray()
        for place, sample in zip(places, indices.tolist(), strict=True):
            name = self.name(sample)
            if (kept := self.store.kept_open(name)) is not None:
                place["descriptor"] = kept
                continue
            place["name"] = len(names)
            names += os.fsencode(self.store.path(name)) + b"\0"
        return places, bytes(names)

    def fetch(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out` with a range of a file, as slowly as the emulated storage."""
        if self._throttle is not None:
            self._throttle.wait(len(out))
        self.store.read_into(name, start, out)

    def where(self, sample: int) -> tuple[str, str]:
        """File of a sample, and its place in it: `bytes 512 to 9000`, or empty for a whole file."""
        path = self.store.path(self.name(sample))
        if self._shards is None:
            return path, ""
        start = int(self.starts[sample])
        return path, f"bytes {start} to {start + int(self.sizes[sample])}"

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        """Yield path, offset and bytes of these samples in local files."""
        if not self.store.local:
            return
        for sample in indices.tolist():
            yield self.store.path(self.name(sample)), int(self.starts[sample]), int(self.sizes[sample])

    @property
    def files(self) -> list[Path]:
        """List the local files that hold samples."""
        if not self.store.local:
            return []
        names = self._shards if self._shards is not None else map(self.name, range(len(self.sizes)))
        return [Path(self.store.path(name)) for name in names]


_environments: weakref.WeakValueDictionary[tuple[int, str], lmdb.Environment] = weakref.WeakValueDictionary()
"""Of each process and folder: a process may open a database only once."""


class DatabaseReader:
    """As IndexedReader. Records are returned as they lie in the mapped file; each thread keeps one read transaction.

    Opened without locks: the database is written once, whole, before it has readers.
    """

    def __init__(self, folder: Path, throttle: Throttle | None, dataset: str) -> None:
        self._folder, self._throttle, self._local = folder, throttle, threading.local()
        key = (os.getpid(), os.path.realpath(folder))
        try:
            self._environment = _environments.get(key) or lmdb.open(
                key[1], readonly=True, lock=False, readahead=False, create=False
            )
        except (OSError, lmdb.Error) as error:
            raise UserError(f"the database cannot be opened: {error}", str(folder), replace_remedy(dataset)) from None
        _environments[key] = self._environment

    def read(self, sample: int, epoch: int) -> Any:
        transaction = getattr(self._local, "transaction", None)
        if transaction is None:
            transaction = self._local.transaction = self._environment.begin(buffers=True)
        try:
            record = transaction.get(database_key(sample))
        except lmdb.Error as error:
            raise OSError(str(error)) from None
        if record is None:
            raise EOFError(f"the database has no record {database_key(sample).decode()}")
        if self._throttle is not None:
            self._throttle.wait(len(record))
        return record

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        return iter(())

    def where(self, sample: int) -> tuple[str, str]:
        return str(self._folder), f"record {database_key(sample).decode()}"

    @property
    def files(self) -> list[Path]:
        return [self._folder / "data.mdb"]


Storage = IndexedReader | DatabaseReader


class MemoryReader:
    """Keeps every sample that was read, in one anonymous file that worker processes share.

    Each rank has its own.
    """

    def __init__(self, storage: Storage, sizes: NDArray[np.int64], place: str | None) -> None:
        self._storage = storage
        self._offsets = np.concatenate([[len(sizes)], len(sizes) + np.cumsum(sizes)])
        total = int(self._offsets[-1])
        descriptor = os.open(place, os.O_RDWR) if place else os.memfd_create("scalestudy-samples")
        weakref.finalize(self, os.close, descriptor)
        self.place = f"/proc/{os.getpid()}/fd/{descriptor}"
        """Path by which another process opens the same memory while this one lives."""
        if not place:
            os.ftruncate(descriptor, total)
        self._memory = memoryview(mmap.mmap(descriptor, total))
        # Whether a sample is present; written after its bytes. Workers that read the same sample write the same bytes.
        self._there = self._memory[: len(sizes)]

    def read(self, sample: int, epoch: int) -> Any:
        """The bytes of one sample, as of Storage."""
        kept = self._memory[self._offsets[sample] : self._offsets[sample + 1]]
        if not self._there[sample]:
            kept[:] = self._storage.read(sample, epoch)
            self._there[sample] = 1
        return kept
