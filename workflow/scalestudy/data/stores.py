"""Stores: named files of which ranges are read, from a folder, over HTTP or from a bucket."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError

CLIENT: Any = {"allow_http": True, "connect_timeout": "5 s", "timeout": "30 s"}
RETRIES: Any = {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=20)}
"""A server that is gone is an error in under 30 seconds."""
SAME_FILES = "prepare the data again, or check that `stage.from` holds the same files"


def _fill(descriptor: int, start: int, out: memoryview) -> None:
    done = 0
    while done < len(out):
        count = os.preadv(descriptor, [out[done:]], start + done)
        if count == 0:
            raise EOFError(f"it ends after {start + done:,} bytes, {start + len(out):,} are needed")
        done += count


class FolderStore:
    """Reads files of a folder by name; several threads may read at once.

    With `kept_open`, a file is opened once: for large ones of which many ranges are read. At most a quarter of the files
    that this process may have open are kept; others are opened for each range.
    """

    local = True
    """Whether files go through this machine's page cache."""

    def __init__(self, folder: str, kept_open: bool) -> None:
        self.folder, self._descriptors, self._lock = folder, dict[str, int](), threading.Lock()
        self._max_kept = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 if kept_open else 0

    def path(self, name: str) -> str:
        """The whole path or address of a file."""
        return f"{self.folder}/{name}"

    def size(self, name: str) -> int:
        """Bytes of a file; UserError where the storage does not report them."""
        try:
            return Path(self.path(name)).stat().st_size
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", self.path(name), SAME_FILES) from None

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out` with the bytes of a file from `start` on; OSError or EOFError where they cannot be read."""
        if (kept := self.kept_open(name)) is not None:
            _fill(kept, start, out)
            return
        with self.opened(name) as read:
            read(start, out)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Callable[[int, memoryview], None]]:
        """As `read_into`, for a file that is read from its beginning to its end."""
        descriptor = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield functools.partial(_fill, descriptor)
        finally:
            os.close(descriptor)

    def kept_open(self, name: str) -> int | None:
        """Descriptor of a file that stays open until `close`; None for one that is opened for each range."""
        if name not in self._descriptors and len(self._descriptors) >= self._max_kept:
            return None
        with self._lock:
            if name not in self._descriptors:
                descriptor = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                # The order is random: pages read ahead are wasted, and no one counts them against a limit.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                self._descriptors[name] = descriptor
            return self._descriptors[name]

    def close(self) -> None:
        """Close files and connections."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def __del__(self) -> None:
        self.close()


class ObjectStore:
    """Reads files below an http(s) address or in a bucket by range requests, as FolderStore does in a folder.

    Credentials, regions and endpoints come from the environment, as obstore's documentation names them.
    """

    local = False

    def __init__(self, address: str) -> None:
        import obstore.store  # 30 MiB, needed by few runs

        self._address = address.rstrip("/")
        try:
            self._store: Any = obstore.store.from_url(self._address, client_options=CLIENT, retry_config=RETRIES)
        except Exception as error:  # obstore's errors have no common base class
            raise UserError(f"obstore cannot open it: {_reason(error)}", self._address, SAME_FILES) from None

    def path(self, name: str) -> str:
        return f"{self._address}/{name}"

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        if not len(out):
            return  # an empty range is an error of HTTP
        try:
            data = memoryview(self._store.get_range(name, start=start, length=len(out)))
        except Exception as error:
            raise OSError(f"the server does not deliver it ({_reason(error)})") from None
        if len(data) != len(out):
            raise EOFError(f"{len(data):,} bytes came, {len(out):,} are needed")
        out[:] = data

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Callable[[int, memoryview], None]]:
        yield functools.partial(self.read_into, name)

    def close(self) -> None:
        """Nothing is kept open."""

    def size(self, name: str) -> int:
        try:
            return int(self._store.head(name)["size"])
        except Exception as error:
            raise UserError(f"its size is unknown: {_reason(error)}", self.path(name), SAME_FILES) from None


Store = FolderStore | ObjectStore


def _reason(error: Exception) -> str:
    """The first line of obstore's error, and the innermost cause, which its debug text ends with."""
    text, _, debug = str(error).partition("\n")
    causes = [line.strip(" ,({") for line in debug.splitlines() if line.strip(" ,(){}")]
    return f"{text}: {' '.join(causes[-2:])}" if causes else text


def store_at(address: str, kept_open: bool) -> Store:
    """The store at a folder or an address; `kept_open`: as of FolderStore."""
    return ObjectStore(address) if "://" in address else FolderStore(str(Path(address).absolute()), kept_open)
