"""The copies on one node: which processes use them, which make them, and which copies are removed for new ones.

Next to each folder of copies lie `<name>.lock` (shared by users, exclusive for the process that copies or removes) and
`<name>.json` (its bytes, and whether it is whole). In the folder, the empty file `.<name>.copies` marks it as made here: a folder without it, and without a manifest of that dataset, is
never emptied or written to. A lock ends with the process that holds it. All of it can be deleted while no run uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any, NamedTuple

from scalestudy.data.manifest import read_manifest
from scalestudy.errors import UserError
from scalestudy.files import plain_file, read_json, sync_directory, write_json
from scalestudy.locks import holder, lock_patiently
from scalestudy.spec.config import Site

ROOM = "room.lock"
WAIT_S = 0.02
"""How often who waits for copies looks whether they are there: it is part of the time that a run needs for them."""
LARGER = "free some space there, or set `scratch` of the site to a larger place"
FACTS: dict[str, Any] = {"state": "", "bytes": 0, "private": False}
"""What is recorded about a set of copies, where nothing is."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def scratch_folder(site: Site) -> Path:
    """The folder of this user's copies on this node; created where it does not exist.

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
            f"cannot be created: {error.strerror}",
            str(folder),
            "set `scratch` of the site to a folder that can be written",
        ) from None
    if folder.stat().st_uid != os.getuid():
        raise UserError("belongs to another user", str(folder), "set `scratch` of the site to another place")
    return folder


class CacheEntry:
    """One set of copies, and this process's lock on it."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.folder = root / name
        self._facts, self._lock = root / f"{name}.json", root / f"{name}.lock"
        self._marker = self.folder / f".{name}.copies"
        self._held: IO[bytes] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What is recorded about it; FACTS where nothing is, or it is damaged: then copies are made anew."""
        with contextlib.suppress(UserError):
            return {**FACTS, **read_json(self._facts)}
        return dict(FACTS)

    def record(self, facts: dict[str, Any]) -> None:
        """Record its dataset, size and state."""
        write_json(self._facts, facts)

    def used_now(self) -> None:
        """Record that it is used now."""
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

        Removing an entry removes its lock file too: a lock on a file that is gone does not count.
        """
        while True:
            if self._held is None:
                self._held = open(self._lock, "a+b", buffering=0, opener=plain_file)  # noqa: SIM115 (held by a run)
            try:
                if kind & fcntl.LOCK_NB:
                    fcntl.flock(self._held, kind)
                else:
                    lock_patiently(self._held, f"the process that makes the copies in {self.folder}", kind, WAIT_S)
            except BlockingIOError:
                self.let_go()
                return False
            with contextlib.suppress(FileNotFoundError):
                if self._lock.stat().st_ino == os.fstat(self._held.fileno()).st_ino:
                    return True
            self.let_go()

    def let_go(self) -> None:
        """Give up the lock."""
        if self._held is not None:
            self._held.close()
            self._held = None

    @property
    def user(self) -> str:
        """Who has its lock, as far as it is known."""
        with contextlib.suppress(OSError), open(self._lock, "rb", opener=plain_file) as lock:
            return holder(lock)
        return "another process"

    @property
    def ours(self) -> bool:
        """Whether the folder holds copies of ours, is empty, or does not exist: nothing else may be emptied."""
        if self.folder.is_symlink():
            return False
        if not self.folder.exists() or self._marker.exists():
            return True
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            return True
        with contextlib.suppress(UserError):
            return self.name.startswith(f"{read_manifest(self.folder / 'manifest.json').id}-")
        return False

    def claim(self) -> None:
        """Create and mark the folder; UserError where it holds something else. The lock must be held."""
        if not self.ours:
            what = "copies belong there, but the folder holds something else: it is left as it is"
            raise UserError(what, str(self.folder), "move it away, or delete it if nothing in it is needed")
        self.folder.mkdir(exist_ok=True)
        self._marker.touch()
        sync_directory(self.folder)

    def remove(self) -> bool:
        """Delete it; False where another process uses it, or its folder is not ours."""
        if not self.ours or not self.hold(fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        shutil.rmtree(self.folder, ignore_errors=True)
        for file in (self._facts, self._lock):
            file.unlink(missing_ok=True)
        self.let_go()
        return True


def entries(root: Path) -> list[CacheEntry]:
    """Everything in the folder, the longest unused first."""
    names = {path.name.removesuffix(".lock") for path in root.glob("*.lock") if path.name != ROOM}
    names |= {path.name for path in root.iterdir() if path.is_dir()}
    return sorted((CacheEntry(root, name) for name in names), key=lambda entry: entry.last_used_s)


def make_room(root: Path, entry: CacheEntry, needed_bytes: int, limit_bytes: int | None, facts: dict[str, Any]) -> None:
    """Make room for an entry's copies before the first byte is copied, then record `facts`.

    The longest unused copies are removed. `needed_bytes` are still to be copied, `facts["bytes"]` is the total. Copies
    that others are still making count in full. Raises UserError where there is not enough room.
    """
    with open(root / ROOM, "a+b", buffering=0, opener=plain_file) as lock:
        lock_patiently(lock, "another process that makes room for its copies")
        others = [other for other in entries(root) if other.name != entry.name]
        for other in others:
            if other.facts.get("private"):
                other.remove()
        oldest_first = iter(others)
        while short := _short(root, entry, needed_bytes, int(facts["bytes"]), limit_bytes):
            if not any(other.remove() for other in oldest_first):
                remedy = (
                    "set `scratch` of the site to a larger place, raise `staged_gib`, or set `stage.share: by_shard`"
                )
                raise UserError(short, str(root), remedy)
        entry.record(facts)


def _short(root: Path, entry: CacheEntry, needed: int, whole: int, limit: int | None) -> str:
    """Why there is not enough room; empty where there is."""
    others = [other for other in entries(root) if other.name != entry.name]
    taken = sum(int(other.facts.get("bytes", 0)) for other in others)
    if limit is not None and taken + whole > limit:
        return f"the copies take {_gb(whole)}; `staged_gib` allows {_gb(limit)}, of which runs are using {_gb(taken)}"
    coming = [other for other in others if other.facts.get("state") == "copying"]
    promised = sum(max(0, int(other.facts["bytes"]) - _bytes_in(other.folder)) for other in coming)
    free = shutil.disk_usage(root).free
    if needed > free - promised:
        also = f", of which other jobs need {_gb(promised)}" if promised else ""
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
    """Write everything on the file system of `folder` to its disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if _LIBC.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "syncfs failed", str(folder))
    finally:
        os.close(descriptor)


class Cleaned(NamedTuple):
    """Names of the entries in a folder of copies, by what happened to them."""

    removed: list[str]
    used: list[str]
    foreign: list[str]
    """Folders that hold something else, and stay."""


def clean(root: Path) -> Cleaned:
    """Remove all copies that no process uses."""
    cleaned = Cleaned([], [], [])
    for entry in entries(root):
        if not entry.ours:
            cleaned.foreign.append(entry.name)
        elif entry.remove():
            cleaned.removed.append(entry.name)
        else:
            cleaned.used.append(entry.name)
    return cleaned
