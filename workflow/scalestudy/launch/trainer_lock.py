"""The lock of a run's folder: one process trains the run, on whatever host."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from scalestudy import processes
from scalestudy.errors import UserError
from scalestudy.files import plain_file
from scalestudy.launch.keeper import Keeper, keeper
from scalestudy.locks import NO_LOCKS_HERE, Note, Patience, is_here, lock_patiently, me, note_in, shown, sign

LOCK = ".trainer.lock"
SILENT_S = 35.0
"""A lock of another host that is not touched for so long is that of a process that was killed."""
WRITTEN_WITHIN_TRIES = 50
POLL_S = 0.5


@contextmanager
def only_trainer(folder: Path) -> Iterator[Keeper]:
    """Held by the one process that trains the run of a folder.

    An orphan is waited for: its driver is gone, so it writes a checkpoint and ends by itself; and so are the ranks of a
    process that was killed. Raises UserError where any other process trains the run. Not every shared file system shows
    the locks of one host to others: a note in the file says who has it, and the keeper, which is yielded, touches it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    while True:
        with open(file, "a+b", buffering=0, opener=plain_file) as lock:
            has_locks = _lock_or_wait(lock, file)
            if not _is_still(file, lock):
                continue  # removed by the process that held it
            if _lives_unseen(lock, file, has_locks):
                raise _taken(note_in(lock), folder)
            try:
                sign(lock, {**me(), "driver": processes.driver()})
            except ValueError:
                what = "belongs to scalestudy by its name, but holds something else: it is left as it is"
                raise UserError(what, str(file), "move it away, or delete it if it is not needed") from None
            with keeper(file) as held:
                try:
                    yield held
                finally:
                    file.unlink(missing_ok=True)
            return


def trainer_of(folder: Path) -> str | None:
    """The process that trains the run of a folder, in words; None where none does."""
    try:
        with open(folder / LOCK, "r+b", buffering=0, opener=plain_file) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_locks = True
            except BlockingIOError:
                note = note_in(lock)
                if note is not None and not is_here(note) and not _is_touched(lock, folder / LOCK):
                    return None
                return _in_words(lock)
            except OSError as error:
                if error.errno not in NO_LOCKS_HERE:
                    raise
                has_locks = False
            note = note_in(lock)
            return shown(note) if note and _lives_unseen(lock, folder / LOCK, has_locks) else None
    except FileNotFoundError:
        return None


def _lock_or_wait(lock: IO[Any], file: Path) -> bool:
    """Lock the file, which a process that comes to its end may hold; whether its file system has locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _refuse_if_it_goes_on(lock, file)
        if _is_still(file, lock):
            lock_patiently(lock, "the end of what trains this run")
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise
        return False
    return True


def _refuse_if_it_goes_on(lock: IO[Any], file: Path) -> None:
    note = _holder(lock)
    if not is_here(note):
        if _is_touched(lock, file):
            raise _taken(note, file.parent)
        file.unlink(missing_ok=True)  # its host crashed: a server can keep the locks of one that does not come back
    elif processes.is_gone(note["process"]):
        return
    elif processes.is_gone(note.get("driver", "")):
        text = f"waiting for {shown(note)}: its driver is gone, so it ends with a checkpoint"
        print(text, file=sys.stderr, flush=True)
    else:
        raise _taken(note, file.parent)


def _taken(note: Note | None, folder: Path) -> UserError:
    if note is None:
        return UserError("another process trains this run", str(folder), "wait for it, or end it")
    kill = f"kill {note['process'].partition(':')[0]}"
    if is_here(note):
        where = " on this machine"
    else:
        where, kill = "", f"{kill} (on {note.get('host', 'its host')})"
    remedy = f"wait for it, or have it write a checkpoint and end: {kill}"
    return UserError(f"{shown(note)}{where} trains this run", str(folder), remedy)


def _holder(lock: IO[Any]) -> Note:
    """The process that holds a trainer's lock, as it has written down once it had the lock."""
    for _ in range(WRITTEN_WITHIN_TRIES):
        if (note := note_in(lock)) is not None:
            return note
        time.sleep(0.1)
    raise _taken(None, Path(lock.name).parent)


def _is_still(file: Path, lock: IO[Any]) -> bool:
    """Whether a path leads to the file that is open."""
    try:
        return os.path.samestat(file.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False


# Across hosts


def _lives_unseen(lock: IO[Any], file: Path, has_locks: bool) -> bool:
    """Whether the process that a free lock names lives, although its lock is not seen here."""
    note = note_in(lock)
    if note is None:
        return False
    if is_here(note):
        return not has_locks and not processes.is_gone(note["process"])
    return _is_touched(lock, file)


def _is_touched(lock: IO[Any], file: Path) -> bool:
    """Whether a lock has a heartbeat. It is watched for SILENT_S at most, and not at all where it is older than that."""
    first = os.fstat(lock.fileno()).st_mtime_ns
    begin = time.monotonic()
    silent = _now_ns(file.parent) - first
    patience = Patience(lambda: f"a heartbeat of {_in_words(lock)}, which had this run")
    while silent + 1e9 * (time.monotonic() - begin) < 1e9 * SILENT_S:
        # Opened each time: a network file system may keep what it knows of a file for a minute, but not beyond that.
        with suppress(FileNotFoundError), open(file, "rb") as now:
            if os.fstat(now.fileno()).st_mtime_ns != first:
                return True
        patience.look(POLL_S)
    return False


def _in_words(lock: IO[Any]) -> str:
    """Who has noted a lock as its own."""
    note = note_in(lock)
    return "another process" if note is None else shown(note)


def _now_ns(folder: Path) -> int:
    """The time by the clock of a folder's file system, which may be that of another host."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.") as probe:
        os.utime(probe.fileno())
        return os.fstat(probe.fileno()).st_mtime_ns
