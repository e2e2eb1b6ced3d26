"""One driver per folder. Snakemake's own lock does not tell a living driver from one that was killed; this one does.

The file names host, process and the time it was started, and is touched while the driver lives. It is stale if its
process is gone, or, where that cannot be seen, if it was not touched for ten minutes: on another host, after a restart
of this one, and in another container, where hosts can have the same name.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from snakemake_executor_plugin_multinode.clock import Clock

SILENT_S = 600.0
WRITTEN_WITHIN_S = 5.0
"""A lock without content is that of a driver that is about to write it, on a file system without hard links."""
TOUCH_S = 20.0


@dataclass(frozen=True)
class Owner:
    """A driver."""

    host: str
    pid: int
    started: str
    """Start time of its process, as the kernel counts it: process ids are reused."""
    token: str
    space: str = ""
    """Its namespace of process ids; empty: an older version did not say."""


class Taken(Exception):
    """Another driver works in this folder; the message says which."""


class DriverLock:
    """The lock of a working directory."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.path = folder / "driver.json"
        self.me = Owner(socket.gethostname(), os.getpid(), _started(os.getpid()) or "", uuid.uuid4().hex, _space())
        self.taken_ns = 0
        self._touched = -TOUCH_S

    def take(self) -> Owner | None:
        """Take the lock; returns the owner of a stale lock that was replaced. Raises Taken if its owner is alive."""
        before = None
        for _ in range(10):
            if self._create():
                self.taken_ns = self.path.stat().st_mtime_ns
                return before
            self._wait_until_written()
            owner = self.owner()
            if owner is not None and self._lives(owner):
                raise Taken(self._sentence(owner))
            if self._remove_stale(owner):
                before = owner
        raise Taken(f"{self.path} keeps changing owners; start only one driver")

    def keep(self) -> bool:
        """Update the time stamp of the lock; False if it is another's. An unreadable lock has no owner."""
        if self.clock.now_s() - self._touched < TOUCH_S:
            return True
        self._touched = self.clock.now_s()
        try:
            if self.owner() not in (self.me, None):
                return False
            os.utime(self.path)
        except OSError:  # a temporary error of the file system proves nothing
            pass
        return True

    def keep_for_ever(self) -> None:
        """Update the time stamp for as long as this process lives, for drivers without a loop of their own."""

        def touch() -> None:
            while self.keep():
                self.clock.wait(TOUCH_S)

        threading.Thread(target=touch, daemon=True).start()

    def release(self) -> None:
        """Release the lock, if it is ours."""
        if self.owner() == self.me:
            self.path.unlink(missing_ok=True)

    def owner(self) -> Owner | None:
        """The owner of the lock; None without an owner, or if the file cannot be read."""
        try:
            return Owner(**json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def _create(self) -> bool:
        temporary = self.path.with_name(f".{self.path.name}.{self.me.token}")
        try:
            temporary.write_text(json.dumps(asdict(self.me)) + "\n", encoding="utf-8")
            _link(temporary, self.path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _wait_until_written(self) -> None:
        """Returns at once unless the lock is there, new and empty."""
        end = self.clock.now_s() + WRITTEN_WITHIN_S
        while self.clock.now_s() < end:
            try:
                if self.path.stat().st_size or self._silent_s() > WRITTEN_WITHIN_S:
                    return
            except OSError:
                return
            self.clock.wait(0.1)

    def _lives(self, owner: Owner) -> bool:
        if self._is_here(owner):
            return _started(owner.pid) == owner.started
        return self._silent_s() < SILENT_S

    def _is_here(self, owner: Owner) -> bool:
        """Whether its process would be seen from here: same host, boot and namespace of process ids."""
        boots = owner.started.partition(":")[0], self.me.started.partition(":")[0]
        return owner.host == self.me.host and boots[0] == boots[1] and owner.space in ("", self.me.space)

    def _silent_s(self) -> float:
        """Seconds since the time stamp of the lock was updated, by the clock of the file system."""
        probe = self.path.with_name(f".{self.path.name}.clock.{self.me.token}")
        probe.touch()
        try:
            return probe.stat().st_mtime - self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)

    def _remove_stale(self, owner: Owner | None) -> bool:
        """Move a stale lock away; if another driver took it in that moment, give it back."""
        aside = self.path.with_name(f".{self.path.name}.stale.{self.me.token}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return False
        try:
            found = Owner(**json.loads(aside.read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError):
            found = None
        if found is not None and found != owner:
            with suppress(FileExistsError):
                _link(aside, self.path)
        aside.unlink(missing_ok=True)
        return True

    def _sentence(self, owner: Owner) -> str:
        text = f"another driver works in this folder: process {owner.pid} on {owner.host}"
        if self._is_here(owner):
            return f"{text}. Wait for it, or end it: kill {owner.pid}"
        return (
            f"{text}, which was heard of {self._silent_s():.0f} s ago. "
            f"If it is dead, start again in {SILENT_S / 60:.0f} minutes or remove {self.path}"
        )


def _link(content: Path, path: Path) -> None:
    """Give a file another name, FileExistsError where that is taken. A copy, where the file system has no hard links."""
    try:
        os.link(content, path)  # fails if it is there, on network file systems too
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        with open(path, "x", encoding="utf-8") as file:
            file.write(content.read_text(encoding="utf-8"))


NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""What link(2) says on FAT, on some FUSE and network file systems, and where the file system counts no more links."""


def _space() -> str:
    """The namespace of this process's id; empty where the system does not say."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Start time of a process, with the boot it counts from; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
