"""Tar files without unpacking: ustar headers for the tars that we write, and where the members of any tar lie.

Python's tarfile ends silently at a damaged header, finds a tenth of the members a second, and writes bytes that depend
on Python's version.
Format: POSIX.1-1988 ustar, with the long names and sizes of GNU tar and of pax (POSIX.1-2001) understood.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scalestudy.errors import UserError

BLOCK = 512
END = bytes(2 * BLOCK)
"""Two empty blocks end an archive."""
MAX_MEMBER_BYTES = 8**11 - 1
"""Largest member, bytes, that ustar's eleven octal digits can express."""
FILE, LONG_NAME, LONG_TARGET, PAX, PAX_GLOBAL, HARD_LINK = (b"0", b"\0", b"7"), b"L", b"K", b"x", b"g", b"1"
MAX_NAME_BYTES = 1 << 16
"""Bytes of a member's name, or of what pax says of one, from which on an archive is refused: PATH_MAX is 4,096."""
OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
PAX_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=]*)=")
PAX_SIZE = re.compile(rb"[0-9]{1,18}")


class Member(NamedTuple):
    """One file inside a tar."""

    name: bytes
    start: int
    """Where its bytes begin, counted as the archive's beginning is."""
    size: int
    is_file: bool
    """Whether it is a plain file: no link, folder, device or pipe."""


def padded(size: int) -> int:
    """Bytes that a member of `size` bytes takes after its header: whole blocks."""
    return -(-size // BLOCK) * BLOCK


def header(name: str, size: int) -> bytes:
    """A ustar header: plain file, mode 644, owner 0, time 0, so that equal members give equal bytes."""
    coded = name.encode("ascii")
    assert len(coded) <= 100 and size <= MAX_MEMBER_BYTES
    fields = b"%-100b%07o\0%07o\0%07o\0%011o\0%011o\0" % (coded.ljust(100, b"\0"), 0o644, 0, 0, size, 0)
    rest = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\x000000000\0" + bytes(155 + 12)
    checksum = sum(fields) + 8 * ord(" ") + sum(rest)
    return fields + b"%06o\0 " % checksum + rest


def member(name: str, data: bytes) -> bytes:
    """A small member, whole: header, bytes, padding."""
    return header(name, len(data)) + data + bytes(padded(len(data)) - len(data))


def entries(path: Path, begin: int = 0, size: int | None = None) -> Iterator[Member]:
    """Everything that a tar holds, or one of `size` bytes inside it, in its order: links, folders and others too. Hidden
    files are left out, such as the `._name` that macOS puts beside a file.

    Raises UserError where a header is damaged or the archive ends early.
    """
    where = str(path)
    with open(path, "rb", buffering=0) as stream:
        descriptor = stream.fileno()
        end = os.fstat(descriptor).st_size if size is None else begin + size
        position, name, large = begin, b"", -1
        while position + BLOCK <= end:
            block = os.pread(descriptor, BLOCK, position)
            if block == bytes(BLOCK):
                return
            length, kind = _checked(block, where, position), block[156:157]
            start = position + BLOCK
            length = 0 if kind == HARD_LINK else large if large >= 0 and kind in FILE else length
            if start + length > end:
                raise UserError(f"ends within a member that begins at byte {position:,}", where, "copy it again")
            if kind in (LONG_NAME, LONG_TARGET, PAX) and length > MAX_NAME_BYTES:
                what = f"has a name of {length:,} bytes at byte {position:,}"
                raise UserError(what, where, "is it an archive of images?")
            if kind == LONG_NAME:
                name = os.pread(descriptor, length, start).rstrip(b"\0")
            elif kind == PAX:
                extended = _pax(os.pread(descriptor, length, start), where, position)
                name = extended.get(b"path", name)
                if (size_text := extended.get(b"size")) is not None:
                    if PAX_SIZE.fullmatch(size_text) is None:
                        raise _damaged(where, position)
                    large = int(size_text)
            elif kind not in (PAX_GLOBAL, LONG_TARGET):
                name = name or _name(block)
                if not name.rpartition(b"/")[2].startswith(b"."):
                    yield Member(name, start, length, kind in FILE)
                name, large = b"", -1
            position = start + padded(length)
        raise UserError(f"is not a tar, or ends early, at byte {position:,}", where, "copy it again")


def _checked(block: bytes, where: str, position: int) -> int:
    """The size that a header states; UserError where its checksum is wrong."""
    is_large = block[124] & 0x80  # GNU: base 256 for 8 GiB and more
    size = int.from_bytes(block[125:136], "big") if is_large else _octal(block[124:136])
    if size is None or _octal(block[148:156]) != sum(block[:148]) + 8 * ord(" ") + sum(block[156:]):
        raise _damaged(where, position)
    return size


def _damaged(where: str, position: int) -> UserError:
    return UserError(f"is not a tar, or is damaged, at byte {position:,}", where, "copy it again")


def _octal(field: bytes) -> int | None:
    """A number of a header; None where it is none. Digits only: with a sign, a walk could go backwards."""
    match = OCTAL.fullmatch(field.split(b"\0")[0])
    return None if match is None else int(match[1] or b"0", 8)


def _name(block: bytes) -> bytes:
    name, prefix = block[:100].rstrip(b"\0"), block[345:500].rstrip(b"\0")
    return prefix + b"/" + name if prefix and block[257:263] == b"ustar\0" else name


def _pax(records: bytes, where: str, position: int) -> dict[bytes, bytes]:
    """`length key=value` lines; UserError where one is none."""
    values = {}
    while records.strip(b"\0"):
        head = PAX_RECORD.match(records)
        length = int(head[1]) if head else 0
        if head is None or not head.end() < length <= len(records) or records[length - 1 : length] != b"\n":
            raise _damaged(where, position)
        values[head[2]], records = records[head.end() : length - 1], records[length:]
    return values
