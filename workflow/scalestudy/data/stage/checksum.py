"""Checksums of files as they are copied."""

from __future__ import annotations

import zlib
from typing import Any

import xxhash

from scalestudy.data.stage.wanted import Check


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
