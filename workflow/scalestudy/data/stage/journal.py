"""Which files and pieces of a set of copies are whole, recorded as they become so."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.stage.wanted import WantedFiles
from scalestudy.files import plain_file

WHOLE = 0xFFFFFFFF
"""In place of a piece: the whole file."""
_RECORD = struct.Struct("=IIQ")


class Journal:
    """Which files and pieces are whole: records of file, piece (or WHOLE) and checksum, appended."""

    def __init__(self, path: Path) -> None:
        records = path.read_bytes() if path.exists() else b""
        cut = len(records) // _RECORD.size * _RECORD.size
        self.whole: dict[int, int] = {}
        self.pieces: dict[int, set[int]] = {}
        for number, piece, digest in _RECORD.iter_unpack(records[:cut]):
            if piece == WHOLE:
                self.whole[number] = digest
            else:
                self.pieces.setdefault(number, set()).add(piece)
        self._descriptor = plain_file(str(path), os.O_WRONLY | os.O_CREAT)
        os.ftruncate(self._descriptor, cut)
        os.lseek(self._descriptor, cut, os.SEEK_SET)
        self._lock = threading.Lock()

    def add(self, number: int, piece: int, digest: int = 0) -> None:
        """Record a file or piece. Thread-safe; a record is whole or absent."""
        with self._lock:
            os.write(self._descriptor, _RECORD.pack(number, piece, digest))
            if piece == WHOLE:
                self.whole[number] = digest

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def missing(wanted: WantedFiles, folder: Path, journal: Journal) -> NDArray[np.int64]:
    """Numbers of the files that are not whole: not recorded, or not there with their size any more."""
    found = []
    for number, size in enumerate(wanted.sizes.tolist()):
        if number in journal.whole:
            try:
                if (folder / wanted.name(number)).stat().st_size == size:
                    continue
            except OSError:
                pass
            journal.pieces.pop(number, None)
        found.append(number)
    return np.array(found, np.int64)
