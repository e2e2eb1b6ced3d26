"""The disk under a folder: full, or not yet written to."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from scalestudy.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def full_disk_reported(folder: Path, remedy: str) -> Iterator[None]:
    """Turn `no space left` and `quota exceeded` in this block, which name no file, into a UserError about `folder`."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(f"the disk is full: {error.strerror}", str(error.filename or folder), remedy) from None


def sync(folder: Path) -> None:
    """Write everything on the file system of `folder` to its disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if _LIBC.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "syncfs failed", str(folder))
    finally:
        os.close(descriptor)
