"""Locks of files: a run's folder has one trainer per host, whoever started it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from scalestudy import driver
from scalestudy.errors import UserError

NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What `flock` says on a file system without locks: Lustre mounted without `flock`, some network disks."""
WRITTEN_WITHIN_TRIES, LONGEST_NOTE = 50, 4096
LOCKED_WITHIN_S = 30.0


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Held by one process at a time; the others wait. `file` is made and stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def locked(stream: IO[Any]) -> Iterator[None]:
    """The lock of an open file, held for an instant by one process at a time.

    Without it where the file system has no locks, or where it cannot be had within LOCKED_WITHIN_S.
    """
    end = time.monotonic() + LOCKED_WITHIN_S
    while time.monotonic() < end:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.02)
        except OSError as error:
            if error.errno not in NO_LOCKS_HERE:
                raise
            break
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_UN)


@contextmanager
def only_trainer(folder: Path) -> Iterator[None]:
    """Held by the one process of this host that trains the run of a folder.

    An orphan is waited for: its driver is gone, so it writes a checkpoint and ends by itself; and so are the ranks of a
    process that was killed. Raises UserError where any other process trains the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".trainer.{socket.gethostname()}.lock"
    while True:
        with open(file, "a+", encoding="utf-8") as lock:
            _lock_or_wait(lock, folder)
            if not _is_still(file, lock):
                continue  # removed by the process that held it
            lock.truncate(0)
            lock.write(json.dumps({"process": driver.identity(os.getpid()), "driver": driver.known()}))
            lock.flush()
            try:
                yield
            finally:
                file.unlink(missing_ok=True)
            return


def _lock_or_wait(lock: IO[str], folder: Path) -> None:
    """Lock the file, which a process that comes to its end may hold."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _refuse_if_it_goes_on(lock, folder)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise


def _refuse_if_it_goes_on(lock: IO[str], folder: Path) -> None:
    holder = _holder(lock)
    process = holder["process"].partition(":")[0]
    if driver.is_gone(holder["process"]):
        return
    if driver.is_gone(holder["driver"]):
        text = f"waiting for process {process}: its driver is gone, so it ends with a checkpoint"
        print(text, file=sys.stderr, flush=True)
        return
    remedy = f"wait for it, or have it write a checkpoint and end: kill {process}"
    raise UserError(f"process {process} on this machine trains this run", str(folder), remedy)


def _holder(lock: IO[str]) -> dict[str, str]:
    """The process that holds a trainer's lock, and its driver, as it has written down once it had the lock."""
    for _ in range(WRITTEN_WITHIN_TRIES):
        lock.seek(0)
        with suppress(ValueError, TypeError, RecursionError):
            said = dict(json.loads(lock.read(LONGEST_NOTE)))
            if all(isinstance(said.get(key), str) for key in ("process", "driver")):
                return said
        time.sleep(0.1)
    raise UserError("another process trains this run", str(Path(lock.name).parent), "wait for it, or end it")


def _is_still(file: Path, lock: IO[str]) -> bool:
    """Whether a path leads to the file that is open."""
    try:
        return os.path.samestat(file.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False
