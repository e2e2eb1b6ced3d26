"""Copying files by several threads: read, checksum and write block by block, and name each file when it is whole.

A file from a folder is copied by one thread. A large one from elsewhere comes in pieces, several at a time, and is read
once more, from the page cache, for its checksum.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from scalestudy.data.disk import FULL
from scalestudy.data.progress import Progress
from scalestudy.data.stage.wanted import Check, WantedFiles
from scalestudy.data.stores import Store
from scalestudy.emulation.storage import Throttle
from scalestudy.errors import UserError

BLOCK_BYTES = 1 << 20
"""Read and written at once: it stays in a core's cache between reading, checksum and writing. For writes of 2 MiB,
Linux 6.18 looks for huge pages in the page cache: where memory is fragmented, that takes eight times as long."""
PIECE_BYTES = 8 << 20
"""Size of one request to a store that is not a folder."""
REMEDY = "check that the storage is available and holds the same files; whole files are kept, and the next run resumes"
PART = ".part"
"""Ending of a file that is not whole."""


class Piece(NamedTuple):
    """Some bytes of one file."""

    number: int
    start: int
    size: int


def missing(wanted: WantedFiles, folder: Path) -> NDArray[np.int64]:
    """Numbers of the files that are not there, or have another size."""

    def is_there(name: str, size: int) -> bool:
        try:
            return (folder / name).stat().st_size == size
        except OSError:
            return False

    sizes = enumerate(wanted.sizes.tolist())
    return np.array([number for number, size in sizes if not is_there(wanted.name(number), size)], np.int64)


def copy(
    store: Store,
    wanted: WantedFiles,
    numbers: NDArray[np.int64],
    folder: Path,
    streams: int,
    throttles: Sequence[Throttle] = (),
) -> int:
    """Copy these files below `folder`; returns the bytes copied. `throttles` limit the rate, all of them together.

    Raises UserError for the first file that cannot be read, or whose checksum is wrong; the other threads end.
    """
    copier = _Copier(store, wanted, numbers, folder, throttles)
    # One more where it can write while the others wait for a server.
    others = min(streams + (not store.local), copier.pieces) - 1
    with ThreadPoolExecutor(max(1, others), "stage") as pool:
        more = [pool.submit(copier.work) for _ in range(others)]
        copier.work()
        for done in more:
            done.result()
    copier.progress.end()
    return copier.bytes


class _Copier:
    def __init__(
        self,
        store: Store,
        wanted: WantedFiles,
        numbers: NDArray[np.int64],
        folder: Path,
        throttles: Sequence[Throttle],
    ) -> None:
        self.store, self.wanted, self.folder, self.throttles = store, wanted, folder, throttles
        self.bytes = 0
        sizes = wanted.sizes[numbers]
        self.pieces = len(numbers) if store.local else int(np.maximum(1, -(-sizes // PIECE_BYTES)).sum())
        self.progress = Progress("staging MiB", round(int(sizes.sum()) / 2**20))
        self._left: dict[int, int] = {}
        self._made: set[str] = set()
        self._lock = threading.Lock()
        self._stop = False
        self._todo = self._pieces(numbers)

    def _pieces(self, numbers: NDArray[np.int64]) -> Iterator[Piece]:
        for number in numbers.tolist():
            size = int(self.wanted.sizes[number])
            step = size if self.store.local else PIECE_BYTES
            starts = range(0, size, step) if size else (0,)
            self._left[number] = len(starts)
            for start in starts:
                yield Piece(number, start, min(step, size - start))

    def work(self) -> None:
        """Copy piece after piece in this thread, until none is left or another thread has failed."""
        buffer = memoryview(bytearray(BLOCK_BYTES if self.store.local else PIECE_BYTES))
        try:
            while True:
                with self._lock:
                    piece = None if self._stop else next(self._todo, None)
                if piece is None:
                    return
                self._one(piece, buffer)
        except BaseException:
            self._stop = True
            raise

    def _one(self, piece: Piece, buffer: memoryview) -> None:
        name = self.wanted.name(piece.number)
        path, parent = f"{self.folder}/{name}", name.rpartition("/")[0]
        if parent not in self._made:
            (self.folder / parent).mkdir(parents=True, exist_ok=True)
            self._made.add(parent)
        try:
            digest = self._copied(piece, name, path + PART, buffer)
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise  # about the copies, not about the file
            raise UserError(f"cannot be copied: {error}", self.store.path(name), REMEDY) from None
        with self._lock:
            before, self.bytes = self.bytes, self.bytes + piece.size
            left = self._left[piece.number] = self._left[piece.number] - 1
        self.progress.add((self.bytes >> 20) - (before >> 20))
        if self._stop or left:
            return
        if piece.size < self.wanted.sizes[piece.number]:
            digest = digest_of(path + PART, self.wanted.check, buffer)
        stored = int(self.wanted.checks[piece.number]) if len(self.wanted.checks) else digest
        if digest != stored:
            what = f"the copy has {self.wanted.check} {digest:x}, {stored:x} was stored: it is damaged"
            raise UserError(what, self.store.path(name), "replace it, or prepare the data again")
        Path(path + PART).replace(path)

    def _copied(self, piece: Piece, name: str, path: str, buffer: memoryview) -> int:
        """Copy a piece block by block, until another thread fails; the checksum of a whole file."""
        digest, end = _new_digest(self.wanted.check), piece.start + piece.size
        is_file = piece.size == self.wanted.sizes[piece.number]
        # Not truncated: other threads may be writing to it.
        writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with self.store.opened(name) as read:
                for start in range(piece.start, end, len(buffer)):
                    block = buffer[: min(len(buffer), end - start)]
                    for throttle in self.throttles:
                        throttle.wait(len(block))
                    if self._stop:
                        return 0
                    read(start, block)
                    if is_file:
                        digest.update(block)
                    _write(writing, block, start)
        finally:
            os.close(writing)
        if self.store.local and (there := self.store.size(name)) != piece.size:
            raise EOFError(f"it has {there:,} bytes, {piece.size:,} are expected")
        return int(digest.intdigest())


def _write(descriptor: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + BLOCK_BYTES], start + done)


class Crc32:
    """CRC-32, with the methods of xxhash's checksums."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        self._value = zlib.crc32(data, self._value)

    def intdigest(self) -> int:
        """The checksum of all bytes so far."""
        return self._value


def _new_digest(kind: Check) -> Any:
    return xxhash.xxh3_64() if kind == "xxh3_64" else Crc32()


def digest_of(path: str, kind: Check, buffer: memoryview) -> int:
    """Checksum of a file."""
    digest = _new_digest(kind)
    with open(path, "rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return int(digest.intdigest())
