"""Samples as records of one LMDB environment."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from scalestudy.data.load.readers import REMEDY, Indices, Reader
from scalestudy.data.manifest import database_key
from scalestudy.emulation.storage import Throttle
from scalestudy.errors import UserError

MAX_READERS = 4096


_environments: weakref.WeakValueDictionary[tuple[int, str], lmdb.Environment] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _opened(folder: Path) -> lmdb.Environment:
    """The environment, which a process may open only once; a forked process opens its own."""
    key = (os.getpid(), os.path.realpath(folder))
    with _opening:
        found = _environments.get(key)
        if found is None:
            found = _environments[key] = lmdb.open(
                key[1], readonly=True, lock=False, readahead=False, create=False, max_readers=MAX_READERS
            )
        return found


class DatabaseReader(Reader):
    """Records are returned as they lie in the mapped file; each thread keeps one read transaction.

    Opened without locks: the database is written once, whole, before it has readers.
    """

    def __init__(self, folder: Path, throttle: Throttle | None) -> None:
        self._folder, self._throttle, self._local = folder, throttle, threading.local()
        try:
            self._environment = _opened(folder)
        except (OSError, lmdb.Error) as error:
            raise UserError(f"the database cannot be opened: {error}", str(folder), REMEDY) from None

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

    def where(self, sample: int) -> tuple[str, str]:
        return str(self._folder), f"record {database_key(sample).decode()}"

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        return iter(())

    @property
    def files(self) -> list[Path]:
        return [self._folder / "data.mdb"]
