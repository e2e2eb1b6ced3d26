"""Locks of files: a process that waits says so after a while. Notes in them name their owners."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from scalestudy import processes

SAY_AFTER_S, SAY_AGAIN_S = 30.0, 300.0
POLL_S = 0.1
MAX_NOTE_BYTES = 4096
NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What `flock` says on a file system without locks: Lustre mounted without `flock`, some network disks."""

Note = dict[str, str]


def lock_patiently(
    stream: IO[Any],
    what: str,
    kind: int = fcntl.LOCK_EX,
    poll_s: float = POLL_S,
    lock: Callable[[IO[Any], int], Any] = fcntl.flock,
) -> None:
    """Lock an open file. OSError where it has no locks.

    A wait prints its reason and the file after SAY_AFTER_S, and then every SAY_AGAIN_S.
    """
    begin, due_s = time.monotonic(), SAY_AFTER_S
    while True:
        try:
            lock(stream, kind | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):  # POSIX leaves it open which of them
            waited_s = time.monotonic() - begin
        if waited_s >= due_s:
            due_s = waited_s + SAY_AGAIN_S
            print(
                f"scalestudy: waiting for {what} ({stream.name}), for {waited_s:.0f} s now", file=sys.stderr, flush=True
            )
        time.sleep(poll_s)


def try_lock(stream: IO[Any], kind: int = fcntl.LOCK_EX) -> bool | None:
    """Lock an open file if it is free, and say so; False: another process has it, None: its file system has no locks."""
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise
        return None
    return True


# Owners


def me() -> Note:
    """This process, as a note in a lock names it: process ids mean something in one namespace of one boot of a host."""
    place = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        place = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return {"process": processes.identity(os.getpid()) or "", "host": socket.gethostname(), "place": place}


def sign(stream: IO[Any], note: Note) -> None:
    """Write a note into a lock that is held."""
    os.ftruncate(stream.fileno(), 0)
    os.pwrite(stream.fileno(), json.dumps(note).encode(), 0)


def note_in(stream: IO[Any]) -> Note:
    """The note in a lock; empty without one."""
    with suppress(ValueError, OSError):
        return dict(json.loads(os.pread(stream.fileno(), MAX_NOTE_BYTES, 0)))
    return {}


def is_here(note: Note) -> bool:
    """Whether the process of a note would be seen from this one."""
    return note.get("place", "") == me()["place"]


def shown(note: Note) -> str:
    """The process of a note, in words."""
    if not note:
        return "another process"
    where = "" if is_here(note) else f" on {note.get('host', 'another host')}"
    return f"process {note['process'].partition(':')[0]}{where}"


def is_gone(note: Note) -> bool:
    """Whether the process of a note has ended, as far as it is seen here."""
    return is_here(note) and processes.is_gone(note.get("process", ""))
