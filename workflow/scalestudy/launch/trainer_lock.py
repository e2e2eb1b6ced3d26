"""The lock of a run's folder: one process trains the run, on whatever host."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from scalestudy import processes
from scalestudy.errors import UserError
from scalestudy.launch.keeper import Keeper, keeper
from scalestudy.locks import NO_LOCKS_HERE, Note, is_here, lock_patiently, me, note_in, shown, sign

LOCK = ".trainer.lock"
SILENT_S = 35.0
"""A lock of another host that is not touched for so long is that of a process that was killed."""
OLD_S = 600.0
"""One that was not touched for so long, by clocks of two hosts, is not watched."""
POLL_S = 0.5


@contextmanager
def only_trainer(folder: Path) -> Iterator[Keeper]:
    """Held by the one process that trains the run of a folder.

    An orphan is waited for: its driver is gone, so it writes a checkpoint and ends by itself; and so are the ranks of a
    process that was killed. Raises UserError where any other process trains the run. Not every shared file system shows
    the locks of one host to others: a note in the file names the owner, and the keeper, which is yielded, touches it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    while True:
        with open(file, "a+b", buffering=0) as lock:
            if (owner := _owner(lock, file)) is not None:
                if not _ends_by_itself(owner):
                    raise _taken(owner, folder)
                lock_patiently(lock, "the end of what trains this run")
            if not file.exists() or not os.path.samestat(file.stat(), os.fstat(lock.fileno())):
                continue  # removed by the process that held it
            sign(lock, {**me(), "driver": processes.driver()})
            with keeper(file) as held:
                try:
                    yield held
                finally:
                    file.unlink(missing_ok=True)
            return


def trainer_of(folder: Path) -> str | None:
    """The process that trains the run of a folder, in words; None where none does."""
    with suppress(FileNotFoundError), open(folder / LOCK, "r+b", buffering=0) as lock:
        if (owner := _owner(lock, folder / LOCK)) is not None:
            return shown(owner)
    return None


def _owner(lock: IO[Any], file: Path) -> Note | None:
    """The note of the living owner of a lock, None where there is none: then this process has it."""
    has_locks = True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return note_in(lock) or {}
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise
        has_locks = False
    note = note_in(lock)
    if note is None:
        return None
    if is_here(note):
        return note if not has_locks and not processes.is_gone(note["process"]) else None
    return note if _is_touched(file, note) else None


def _ends_by_itself(owner: Note) -> bool:
    """Whether a lock's owner is an orphan, or was killed: then its keeper cleans up."""
    if not owner or not is_here(owner):
        return False
    if processes.is_gone(owner["process"]):
        return True
    if processes.is_gone(owner.get("driver", "")):
        text = f"waiting for {shown(owner)}: its driver is gone, so it ends with a checkpoint"
        print(text, file=sys.stderr, flush=True)
        return True
    return False


def _taken(owner: Note, folder: Path) -> UserError:
    if not owner:
        return UserError("another process trains this run", str(folder), "wait for it, or end it")
    kill, where = f"kill {owner['process'].partition(':')[0]}", " on this machine"
    if not is_here(owner):
        kill, where = f"{kill} (on {owner.get('host', 'its host')})", ""
    remedy = f"wait for it, or have it write a checkpoint and end: {kill}"
    return UserError(f"{shown(owner)}{where} trains this run", str(folder), remedy)


def _is_touched(file: Path, owner: Note) -> bool:
    """Whether the lock of a process on another host has a heartbeat, for which it is watched for SILENT_S at most."""
    first = file.stat().st_mtime
    end = time.monotonic() + (SILENT_S if time.time() - first < OLD_S else 0.0)
    if end > time.monotonic():
        print(f"scalestudy: looking for a heartbeat of {shown(owner)}, which had this run", file=sys.stderr, flush=True)
    while time.monotonic() < end:
        # Opened each time: a network file system may keep what it knows of a file for a minute, but not beyond that.
        with suppress(FileNotFoundError), open(file, "rb") as now:
            if os.fstat(now.fileno()).st_mtime != first:
                return True
        time.sleep(POLL_S)
    return False
