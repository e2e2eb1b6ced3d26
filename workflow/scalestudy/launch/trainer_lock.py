"""The lock of a run's folder: one process trains the run, on whatever host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from scalestudy import processes
from scalestudy.errors import UserError
from scalestudy.locks import Note, is_gone, is_here, lock_patiently, me, note_in, shown, sign, try_lock

LOCK = ".trainer.lock"


@contextmanager
def only_trainer(folder: Path) -> Iterator[None]:
    """Held by the one process that trains the run of a folder.

    An orphan is waited for: its driver is gone, so it writes a checkpoint and ends by itself; and so are the ranks of a
    process that was killed. Raises UserError where any other process trains the run. On a file system without locks,
    a note in the file names the owner, of which only a process of this host is seen.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    while True:
        with open(file, "a+b", buffering=0) as lock:
            if (owner := _owner(lock)) is not None:
                if not _ends_by_itself(owner):
                    where = " on this machine" if is_here(owner) else ""
                    remedy = "wait for it, or have it write a checkpoint and end by SIGTERM (`kill`)"
                    raise UserError(f"{shown(owner)}{where} trains this run", str(folder), remedy)
                lock_patiently(lock, "the end of what trains this run")
            if not file.exists() or not os.path.samestat(file.stat(), os.fstat(lock.fileno())):
                continue  # removed by the process that held it
            sign(lock, {**me(), "driver": processes.driver()})
            try:
                yield
            finally:
                file.unlink(missing_ok=True)
            return


def trainer_of(folder: Path) -> str | None:
    """The process that trains the run of a folder, in words; None where none does."""
    with suppress(FileNotFoundError), open(folder / LOCK, "r+b", buffering=0) as lock:
        if (owner := _owner(lock)) is not None:
            return shown(owner)
    return None


def _owner(lock: IO[Any]) -> Note | None:
    """The note of the living owner of a lock, None where there is none: then this process has it."""
    if is_locked := try_lock(lock):
        return None
    note = note_in(lock)
    is_seen = note and is_here(note) and not is_gone(note)
    return note if is_locked is False or is_seen else None


def _ends_by_itself(owner: Note) -> bool:
    """Whether a lock's owner is an orphan, or was killed: then its keeper cleans up."""
    if not owner or not is_here(owner):
        return False
    if not is_gone(owner) and processes.is_gone(owner.get("driver", "")):
        text = f"waiting for {shown(owner)}: its driver is gone, so it ends with a checkpoint"
        print(text, file=sys.stderr, flush=True)
        return True
    return is_gone(owner)
