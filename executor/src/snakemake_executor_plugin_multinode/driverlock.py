"""One driver per folder: a flock on a file with a note of its owner.

Snakemake's own lock does not tell a living driver from one that was killed; the kernel drops a flock with its process.
A file system may keep flocks to one host, so the note of a driver elsewhere counts until it was silent for ten minutes:
on another host, and on this one before it was started anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from snakemake_executor_plugin_multinode.status_files import clock_s

SILENT_S = 600.0
TOUCH_S = 20.0


@dataclass(frozen=True)
class Owner:
    """A driver; `boot` is that of its kernel, `token` its own."""

    host: str
    pid: int
    boot: str
    token: str


class Taken(Exception):
    """Another driver works in this folder; the message says which."""


class DriverLock:
    """The lock of a working directory."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self.path, self.now_s = folder / "driver.json", now_s
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        self.me = Owner(socket.gethostname(), os.getpid(), boot, uuid.uuid4().hex)
        self.taken_ns = 0
        """When it was taken, by the clock of the file system."""
        self._file = -1
        self._touched_s = 0.0

    def take(self) -> Owner | None:
        """Take the lock; returns the owner of a stale lock that was replaced. Raises Taken if its owner is alive."""
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        is_free, before = self._try_lock(), self.owner()
        if not is_free or (before is not None and before.boot != self.me.boot and self._silent_s() < SILENT_S):
            why = self._sentence(before)
            os.close(self._file)
            raise Taken(why)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, (json.dumps(asdict(self.me)) + "\n").encode(), 0)
        self.taken_ns, self._touched_s = os.fstat(self._file).st_mtime_ns, self.now_s()
        return before

    def keep(self) -> bool:
        """Update the time stamp of the lock; False if it is another's. An unreadable lock has no owner."""
        if self.now_s() - self._touched_s < TOUCH_S:
            return True
        self._touched_s = self.now_s()
        if self.owner() not in (self.me, None):
            return False
        with suppress(OSError):  # a temporary error of the file system proves nothing
            os.utime(self.path)
        return True

    def keep_for_ever(self) -> None:
        """Update the time stamp for as long as this process lives, for drivers without a loop of their own."""

        def touch() -> None:
            while self.keep():
                time.sleep(TOUCH_S)

        threading.Thread(target=touch, daemon=True).start()

    def release(self) -> None:
        """Release the lock, if it is ours; its empty file stays."""
        if self.owner() == self.me:
            os.ftruncate(self._file, 0)
            os.close(self._file)

    def owner(self) -> Owner | None:
        """The owner of the lock; None without an owner, or if the file cannot be read."""
        try:
            return Owner(**json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without flocks: the note alone counts
            owner = self.owner()
            return owner is None or self._silent_s() >= SILENT_S
        return True

    def _silent_s(self) -> float:
        """Seconds since the time stamp of the lock was updated, by the clock of the file system."""
        return clock_s(self.path.parent) - os.fstat(self._file).st_mtime

    def _sentence(self, owner: Owner | None) -> str:
        if owner is None:
            return f"another driver has begun to work in this folder: {self.path} is locked. Wait for it"
        text = f"another driver works in this folder: process {owner.pid} on {owner.host}"
        if owner.boot == self.me.boot and Path(f"/proc/{owner.pid}").exists():
            return f"{text}. Wait for it, or end it: kill {owner.pid}"
        return (
            f"{text}, which was heard of {self._silent_s():.0f} s ago. "
            f"If it is dead, start again in {SILENT_S / 60:.0f} minutes or remove {self.path}"
        )
