"""The copies on one node: who uses them, who makes them, and which give way to new ones.

Beside each folder of copies lie `<name>.lock` (shared by users, exclusive for who copies or removes), `<name>.journal`
(what is whole) and `<name>.json` (what it is, and how much it takes when it is whole). Locks end with the processes that
hold them, however those end. All of it can be deleted at any time when no run is using it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json
from scalestudy.spec.config import Site

ROOM = "room.lock"
_LIBC = ctypes.CDLL(None, use_errno=True)


def scratch_folder(site: Site) -> Path:
    """Where this user's copies lie on this node; made where it is not there.

    Raises UserError where the site names a variable that is not set, or a folder that cannot be written.
    """
    named = site.scratch or os.environ.get("TMPDIR") or tempfile.gettempdir()
    base = Path(os.path.expandvars(named)).expanduser()
    if "$" in str(base):
        raise UserError(
            f"`{named}` names a variable that is not set in this job", "site: scratch", "set it, or name a folder"
        )
    folder = base / f"scalestudy-staged-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"no copies can be made there: {error.strerror}", str(folder), "see `scratch` of the site"
        ) from None
    if folder.stat().st_uid != os.getuid():
        raise UserError("is another user's", str(folder), "let `scratch` of the site name another place")
    return folder


class Entry:
    """One set of copies, and this process's lock on it."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.folder, self.journal = root / name, root / f"{name}.journal"
        self._facts, self._lock = root / f"{name}.json", root / f"{name}.lock"
        self._descriptor = -1

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of it; empty where nothing is there."""
        with contextlib.suppress(UserError, FileNotFoundError):
            found: dict[str, Any] = read_json(self._facts)
            return found
        return {}

    def say(self, facts: dict[str, Any]) -> None:
        """Record what it is."""
        write_json(self._facts, facts)

    def used_now(self) -> None:
        """It is the youngest."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._facts)

    @property
    def last_used_s(self) -> float:
        """When it was last used, seconds since 1970."""
        try:
            return self._facts.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def hold(self, kind: int) -> bool:
        """Take the lock, LOCK_SH or LOCK_EX; with LOCK_NB, False where another process holds it.

        Whoever removes an entry removes its lock file too: a lock on a file that has gone is no lock.
        """
        while True:
            if self._descriptor < 0:
                self._descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, kind)
            except BlockingIOError:
                self.let_go()
                return False
            with contextlib.suppress(FileNotFoundError):
                if self._lock.stat().st_ino == os.fstat(self._descriptor).st_ino:
                    return True
            self.let_go()

    def let_go(self) -> None:
        """Give up the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> bool:
        """Delete it; False where another process uses it."""
        if not self.hold(fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        shutil.rmtree(self.folder, ignore_errors=True)
        for file in (self.journal, self._facts, self._lock):
            file.unlink(missing_ok=True)
        self.let_go()
        return True


def entries(root: Path) -> list[Entry]:
    """All that lies there, the longest unused first."""
    names = {path.name.removesuffix(".lock") for path in root.glob("*.lock") if path.name != ROOM}
    names |= {path.name for path in root.iterdir() if path.is_dir()}
    return sorted((Entry(root, name) for name in names), key=lambda entry: entry.last_used_s)


def make_room(root: Path, entry: Entry, needed_bytes: int, limit_bytes: int | None, facts: dict[str, Any]) -> None:
    """Room for an entry's copies, before the first byte of them; those longest unused give way. Then says `facts`.

    `needed_bytes` are still to be copied, `facts["bytes"]` is the whole. What others are still copying counts as if it
    were there. Raises UserError where the room cannot be had.
    """
    with open(root / ROOM, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [other for other in entries(root) if other.name != entry.name]
        for other in others:
            if other.facts.get("private"):
                other.remove()
        oldest_first = iter(others)
        while short := _short(root, entry, needed_bytes, int(facts["bytes"]), limit_bytes):
            if not any(other.remove() for other in oldest_first):
                remedy = (
                    "let `scratch` of the site name a larger place, raise `staged_gib`, or take `stage.share: by_shard`"
                )
                raise UserError(short, str(root), remedy)
        entry.say(facts)


def _short(root: Path, entry: Entry, needed: int, whole: int, limit: int | None) -> str:
    """Why there is no room; empty where there is."""
    others = [other for other in entries(root) if other.name != entry.name]
    taken = sum(int(other.facts.get("bytes", 0)) for other in others)
    if limit is not None and taken + whole > limit:
        return f"copies of {_gb(whole)} are needed; {_gb(limit)} are allowed, and runs are using {_gb(taken)} of them"
    coming = [other for other in others if other.facts.get("state") == "copying"]
    promised = sum(max(0, int(other.facts["bytes"]) - _bytes_in(other.folder)) for other in coming)
    free = shutil.disk_usage(root).free
    if needed > free - promised:
        also = f", {_gb(promised)} of them for what others are copying" if promised else ""
        return f"{_gb(needed)} have to be copied, and {_gb(free)} are free{also}"
    return ""


def _gb(size: int) -> str:
    return f"{size / 1e9:,.3g} GB"


def _bytes_in(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


def sync(folder: Path) -> None:
    """Everything that was written to the file system of `folder` is on its disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if _LIBC.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "syncfs failed", str(folder))
    finally:
        os.close(descriptor)


def clean(root: Path) -> tuple[list[str], list[str]]:
    """Remove all copies that no process uses; names of those removed, and of those in use."""
    removed: list[str] = []
    used: list[str] = []
    for entry in entries(root):
        (removed if entry.remove() else used).append(entry.name)
    return removed, used
