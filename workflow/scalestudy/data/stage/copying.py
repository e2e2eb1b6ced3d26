"""Copying files by several threads: read, checksum and write block by block, and record each file that is whole.

A file from a folder is copied by one thread. A large one from elsewhere comes in pieces, several at a time, and is read
once more, from the page cache, for its checksum. A record is written after its bytes, so that a kill loses only the
pieces being copied.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from scalestudy.data.disk import FULL
from scalestudy.data.progress import Progress
from scalestudy.data.stage.journal import WHOLE, Journal
from scalestudy.data.stage.source import Source
from scalestudy.data.stage.wanted import Check, WantedFiles
from scalestudy.errors import UserError

BLOCK_BYTES = 1 << 20
"""Read and written at once: it stays in a core's cache between reading, checksum and writing. For writes of 2 MiB,
Linux 6.18 looks for huge pages in the page cache: where memory is fragmented, that takes eight times as long."""
PIECE_BYTES = 8 << 20
"""Size of one request to a store that is not a folder."""
REMEDY = "check that the storage is available and holds the same files; whole files are kept, and the next run resumes"


@dataclass(frozen=True)
class Piece:
    """Some bytes of one file."""

    number: int
    name: str
    piece: int
    start: int
    size: int
    of: int
    """Bytes of the whole file."""


def copy(
    source: Source, wanted: WantedFiles, numbers: NDArray[np.int64], folder: Path, journal: Journal, streams: int
) -> int:
    """Copy these files below `folder`, recording each; returns the bytes copied.

    Raises UserError for the first file that cannot be read, or whose checksum is wrong; the other threads end.
    """
    copier = _Copier(source, wanted, numbers, folder, journal)
    others = min(source.threads(streams), copier.units) - 1
    with ThreadPoolExecutor(max(1, others), "stage") as pool:
        more = [pool.submit(copier.work) for _ in range(others)]
        copier.work()
        for done in more:
            done.result()
    copier.progress.end()
    return copier.bytes


class _Ended(Exception):
    """Another thread has failed, and raises the error."""


class _Copier:
    def __init__(
        self, source: Source, wanted: WantedFiles, numbers: NDArray[np.int64], folder: Path, journal: Journal
    ) -> None:
        self.source, self.wanted, self.folder, self.journal = source, wanted, folder, journal
        self.bytes = 0
        sizes = wanted.sizes[numbers]
        self.units = len(numbers) if source.folder else int(np.maximum(1, -(-sizes // PIECE_BYTES)).sum())
        self.progress = Progress("staging MiB", round(int(sizes.sum()) / 2**20))
        self._said = 0
        self._left: dict[int, int] = {}
        self._made: set[str] = set()
        self._lock = threading.Lock()
        self._stop = False
        self._todo = self._pieces(numbers)

    def _pieces(self, numbers: NDArray[np.int64]) -> Iterator[Piece]:
        for number in numbers.tolist():
            name, size = self.wanted.name(number), int(self.wanted.sizes[number])
            if self.source.folder or size <= PIECE_BYTES:
                yield Piece(number, name, WHOLE, 0, size, size)
                continue
            there = self.journal.pieces.get(number, set())
            count = -(-size // PIECE_BYTES)
            # At least one is always fetched: the thread of the last one computes the checksum.
            left = [piece for piece in range(count) if piece not in there] or [count - 1]
            self._left[number] = len(left)
            for piece in left:
                start = piece * PIECE_BYTES
                yield Piece(number, name, piece, start, min(PIECE_BYTES, size - start), size)

    def work(self) -> None:
        """Copy piece after piece in this thread, until none is left or another thread has failed."""
        buffer = memoryview(bytearray(BLOCK_BYTES if self.source.folder else PIECE_BYTES))
        try:
            while (piece := self._next()) is not None:
                self._one(piece, buffer)
        except _Ended:
            return
        except BaseException:
            self._stop = True
            raise

    def _next(self) -> Piece | None:
        with self._lock:
            return None if self._stop else next(self._todo, None)

    def _one(self, piece: Piece, buffer: memoryview) -> None:
        try:
            path = self._place(piece.name)
            if self.source.folder:
                digest = self._from_folder(piece, path, buffer)
            else:
                digest = self._from_store(piece, path, buffer[: piece.size])
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise  # about the copies, not about the file
            raise UserError(f"cannot be copied: {error}", self.source.store.path(piece.name), REMEDY) from None
        with self._lock:
            self.bytes += piece.size
            said, self._said = self._said, self.bytes >> 20
        self.progress.add(self._said - said)
        if piece.piece != WHOLE:
            self.journal.add(piece.number, piece.piece)
            with self._lock:
                self._left[piece.number] -= 1
                if self._left[piece.number]:
                    return
            digest = digest_of(path, self.wanted.check, buffer)
        self._check(piece, digest)
        self.journal.add(piece.number, WHOLE, digest)

    def _place(self, name: str) -> str:
        parent = name.rpartition("/")[0]
        if parent not in self._made:
            (self.folder / parent).mkdir(parents=True, exist_ok=True)
            self._made.add(parent)
        return f"{self.folder}/{name}"

    def _from_folder(self, piece: Piece, path: str, buffer: memoryview) -> int:
        digest = Digest(self.wanted.check)
        reading = os.open(f"{self.source.folder}/{piece.name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                done = 0
                while done < piece.size:
                    self.source.wait(min(len(buffer), piece.size - done))
                    if self._stop:
                        raise _Ended
                    count = os.readv(reading, [buffer])
                    if count == 0:
                        break
                    digest.update(buffer[:count])
                    _write(writing, buffer[:count])
                    done += count
            finally:
                os.close(writing)
            if done != os.fstat(reading).st_size or done != piece.size:
                raise EOFError(f"it has {os.fstat(reading).st_size:,} bytes, {piece.size:,} are expected")
        finally:
            os.close(reading)
        return digest.value

    def _from_store(self, piece: Piece, path: str, out: memoryview) -> int:
        self.source.wait(len(out))
        self.source.store.read_into(piece.name, piece.start, out)
        # A file that comes in pieces is not truncated: other threads are writing to it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if piece.piece == WHOLE else 0)
        writing = os.open(path, flags, 0o600)
        try:
            if piece.piece == WHOLE:
                _write(writing, out)
            else:
                os.lseek(writing, piece.start, os.SEEK_SET)
                _write(writing, out)
                if piece.start + piece.size == piece.of:
                    os.ftruncate(writing, piece.of)
        finally:
            os.close(writing)
        if piece.piece != WHOLE:
            return 0
        digest = Digest(self.wanted.check)
        digest.update(out)
        return digest.value

    def _check(self, piece: Piece, digest: int) -> None:
        """UserError where the checksum of a copy is known, and another one."""
        if not len(self.wanted.checks) or digest == int(self.wanted.checks[piece.number]):
            return
        what = f"the copy has {self.wanted.check} {digest:x}, {int(self.wanted.checks[piece.number]):x} was stored"
        raise UserError(
            f"{what}: it is damaged", self.source.store.path(piece.name), "replace it, or prepare the data again"
        )


def _write(descriptor: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.write(descriptor, data[done : done + BLOCK_BYTES])


class Digest:
    """A checksum that is updated block by block."""

    def __init__(self, kind: Check) -> None:
        self._xxh3: Any = xxhash.xxh3_64() if kind == "xxh3_64" else None
        self._crc = 0

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        if self._xxh3 is not None:
            self._xxh3.update(data)
        else:
            self._crc = zlib.crc32(data, self._crc)

    @property
    def value(self) -> int:
        """The checksum of all bytes so far."""
        return int(self._xxh3.intdigest()) if self._xxh3 is not None else self._crc


def digest_of(path: str, kind: Check, buffer: memoryview) -> int:
    """Checksum of a file."""
    digest = Digest(kind)
    with open(path, "rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return digest.value
