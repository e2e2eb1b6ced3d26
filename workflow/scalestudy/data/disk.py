"""A full disk, reported with the folder that lies on it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from scalestudy.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def full_disk_reported(folder: Path, remedy: str) -> Iterator[None]:
    """Turn `no space left` and `quota exceeded` in this block, which name no file, into a UserError about `folder`."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(f"the disk is full: {error.strerror}", str(error.filename or folder), remedy) from None
