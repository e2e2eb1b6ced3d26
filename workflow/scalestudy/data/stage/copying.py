"""Copying files by several threads: read, checksum and write block by block."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from scalestudy.data.disk import FULL
from scalestudy.data.progress import Progress
from scalestudy.data.stage.file_set import FileSet
from scalestudy.data.stores import Store
from scalestudy.emulation.storage import Throttle
from scalestudy.errors import UserError

BLOCK_BYTES = 1 << 20
"""Read and written at once: it stays in a core's cache between reading, checksum and writing. For writes of 2 MiB,
Linux 6.18 looks for huge pages in the page cache: where memory is fragmented, that takes eight times as long."""
REQUEST_BYTES = 8 << 20
"""Size of one request to a store that is not a folder."""
REMEDY = "check that the storage is available and holds the same files; whole files are kept, and the next run resumes"


def missing(file_set: FileSet, folder: Path) -> NDArray[np.int64]:
    """Numbers of the files that are not there, or have another size."""

    def is_there(name: str, size: int) -> bool:
        try:
            return (folder / name).stat().st_size == size
        except OSError:
            return False

    sizes = enumerate(file_set.sizes.tolist())
    return np.array([number for number, size in sizes if not is_there(file_set.name(number), size)], np.int64)


class Copier:
    """Copies files of a store below `folder`; `throttles` limit the rate, all of them together."""

    def __init__(self, store: Store, files: FileSet, folder: Path, throttles: Sequence[Throttle]) -> None:
        self.store, self.files, self.folder, self.throttles = store, files, folder, throttles
        self.bytes = 0
        self._made: set[str] = set()
        self._lock = threading.Lock()
        self._stop = False

    def copy(self, numbers: NDArray[np.int64], streams: int) -> int:
        """Copy these files by so many threads; returns the bytes copied.

        Raises UserError for the first file that cannot be read, or whose checksum is wrong; the other threads end.
        """
        self._todo = iter(numbers.tolist())
        self.progress = Progress("staging MiB", round(int(self.files.sizes[numbers].sum()) / 2**20))
        # One more where it can write while the others wait for a server.
        others = min(streams + (not self.store.local), len(numbers)) - 1
        with self.progress, ThreadPoolExecutor(max(1, others), "stage") as pool:
            more = [pool.submit(self._work) for _ in range(others)]
            self._work()
            for done in more:
                done.result()
        return self.bytes

    def _work(self) -> None:
        """Copy file after file in this thread, until none is left or another thread has failed."""
        buffer = memoryview(bytearray(BLOCK_BYTES if self.store.local else REQUEST_BYTES))
        try:
            while True:
                with self._lock:
                    number = None if self._stop else next(self._todo, None)
                if number is None:
                    return
                self._one(number, buffer)
        except BaseException:
            self._stop = True
            raise

    def _one(self, number: int, buffer: memoryview) -> None:
        # Without Path objects, which cost as much as a small file does.
        name = self.files.name(number)
        if (parent := name.rpartition("/")[0]) not in self._made:
            (self.folder / parent).mkdir(parents=True, exist_ok=True)
            self._made.add(parent)
        try:
            self._copy(number, name, buffer)
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise  # about the copies, not about the file
            raise UserError(f"cannot be copied: {error}", self.store.path(name), REMEDY) from None

    def _copy(self, number: int, name: str, buffer: memoryview) -> None:
        """Copy a file block by block, the last one when the checksum is right: a file that has its size is whole.

        Ends early where another thread has failed.
        """
        size = int(self.files.sizes[number])
        if self.store.local and (source_size := self.store.size(name)) != size:
            raise EOFError(f"it has {source_size:,} bytes, {size:,} are expected")
        xxh3, crc32, is_xxh3 = xxhash.xxh3_64(), 0, self.files.check == "xxh3_64"
        with open(f"{self.folder}/{name}", "wb", buffering=0) as writing, self.store.opened(name) as read:
            for start in range(0, size, len(buffer)):
                block = buffer[: min(len(buffer), size - start)]
                for throttle in self.throttles:
                    throttle.wait(len(block))
                if self._stop:
                    return
                read(start, block)
                if is_xxh3:
                    xxh3.update(block)
                else:
                    crc32 = zlib.crc32(block, crc32)
                if start + len(block) == size:
                    self._check(number, xxh3.intdigest() if is_xxh3 else crc32)
                done = 0
                while done < len(block):
                    done += writing.write(block[done : done + BLOCK_BYTES])
                with self._lock:
                    before, self.bytes = self.bytes, self.bytes + len(block)
                self.progress.add((self.bytes >> 20) - (before >> 20))

    def _check(self, number: int, digest: int) -> None:
        if len(self.files.checks) and digest != (stored := int(self.files.checks[number])):
            what = f"the copy has {self.files.check} {digest:x}, {stored:x} was stored: it is damaged"
            raise UserError(what, self.store.path(self.files.name(number)), "replace it, or prepare the data again")
