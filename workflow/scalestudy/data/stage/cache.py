"""The copies on one node: which processes use them, which make them, and which copies are removed for new ones.

Next to each folder of copies lie `<name>.lock` (shared by those who use or make it, exclusive for the process that removes
it), `<name>.making.lock` (exclusive for the process that copies) and `<name>.json` (its bytes, and whether it is whole). A
lock ends with the process that holds it. All of it can be deleted
while no run uses it; a folder without `<name>.json` is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from scalestudy.errors import UserError
from scalestudy.files import expanded, read_json, write_json
from scalestudy.locks import lock_patiently, try_lock
from scalestudy.spec.config import Site

WAIT_S = 0.02
"""How often who waits for copies looks whether they are there: it is part of the time that a run needs for them."""
LARGER = "free some space there, or set `scratch` of the site to a larger place"
FACTS: dict[str, Any] = {"state": "", "bytes": 0}
"""What is recorded about a set of copies, where nothing is."""


def scratch_folder(site: Site) -> Path:
    """The folder of this user's copies on this node; created where it does not exist.

    Raises UserError where the site names a variable that is not set, or a folder that cannot be written.
    """
    named = site.scratch or os.environ.get("TMPDIR") or tempfile.gettempdir()
    base = expanded(named)
    if "$" in str(base):
        what = f"`{named}` names a variable that is not set in this job"
        raise UserError(what, "site: scratch", "set it, or name a folder")
    folder, other = base / f"scalestudy-staged-{os.getuid()}", "set `scratch` of the site to another folder"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be created: {error.strerror}", str(folder), other) from None
    if folder.stat().st_uid != os.getuid():
        raise UserError("belongs to another user", str(folder), other)
    return folder


class CacheEntry:
    """One set of copies, and this process's lock on it."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name, self.folder = root, name, root / name
        self.record_file, self._lock = root / f"{name}.json", root / f"{name}.lock"
        self._held: IO[bytes] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What is recorded about it; FACTS where nothing is, or it is damaged: then copies are made anew."""
        with contextlib.suppress(UserError):
            return {**FACTS, **read_json(self.record_file)}
        return dict(FACTS)

    @property
    def last_used_s(self) -> float:
        """When it was last used, seconds since 1970."""
        try:
            return self.record_file.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def record(self, state: str, size: int) -> None:
        """Record that its files, of `size` bytes together, are `copying` or `whole`."""
        write_json(self.record_file, {"state": state, "bytes": size})

    def share(self) -> None:
        """Take a shared lock: until `let_go`, no other process removes it."""
        self._held = open(self._lock, "a+b", buffering=0)  # noqa: SIM115 (held by a run)
        lock_patiently(self._held, f"the process that removes the copies in {self.folder}", fcntl.LOCK_SH)

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Only one process at a time is in this block."""
        with open(self.root / f"{self.name}.making.lock", "a+b", buffering=0) as lock:
            lock_patiently(lock, f"the process that makes the copies in {self.folder}", poll_s=WAIT_S)
            yield

    def take(self) -> bool:
        """Take the lock for this process alone; False where another process has it."""
        self._held = open(self._lock, "a+b", buffering=0)  # noqa: SIM115 (held while it is removed)
        if not try_lock(self._held):
            self.let_go()
        return self._held is not None

    def let_go(self) -> None:
        """Give up the lock."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def remove(self) -> bool:
        """Delete it, but for its lock; False where another process uses it."""
        if not self.take():
            return False
        self.record_file.write_text("{}")  # where it is interrupted, nobody takes what is left for whole copies
        shutil.rmtree(self.folder, ignore_errors=True)
        self.record_file.unlink(missing_ok=True)
        self.let_go()
        return True


def entries(root: Path) -> list[CacheEntry]:
    """All copies, the longest unused first."""
    copies = (CacheEntry(root, path.stem) for path in root.glob("[!.]*.json"))
    return sorted(copies, key=lambda entry: entry.last_used_s)


def make_room(entry: CacheEntry, needed: int, whole: int, limit: int | None) -> None:
    """Make room for an entry's copies before the first byte is copied, and record them.

    The longest unused copies are removed. `needed` of its `whole` bytes are still to be copied; all copies may take `limit`
    bytes. Raises UserError where there is not enough room.
    """
    with open(entry.root / "room.lock", "a+b", buffering=0) as lock:
        lock_patiently(lock, "another process that makes room for its copies")
        others = [other for other in entries(entry.root) if other.name != entry.name]
        while short := _short(entry.root, others, needed, whole, limit):
            gone = next((other for other in others if other.remove()), None)
            if gone is None:
                remedy = (
                    "set `scratch` of the site to a larger place, raise `staged_gib`, or set `stage.share: by_shard`"
                )
                raise UserError(short, str(entry.root), remedy)
            others.remove(gone)
        entry.record("copying", whole)


def _short(root: Path, others: list[CacheEntry], needed: int, whole: int, limit: int | None) -> str:
    """Why there is not enough room; empty where there is."""
    taken = sum(int(other.facts["bytes"]) for other in others)
    if limit is not None and taken + whole > limit:
        return f"the copies take {_gb(whole)}; `staged_gib` allows {_gb(limit)}, of which runs are using {_gb(taken)}"
    free = shutil.disk_usage(root).free
    return f"{_gb(needed)} have to be copied, and {_gb(free)} are free" if needed > free else ""


def _gb(size: int) -> str:
    return f"{size / 1e9:,.3g} GB"


def clean(root: Path) -> tuple[list[str], list[str]]:
    """Remove all copies that no process uses; names of those that were removed, and of those in use."""
    removed = {entry.name: entry.remove() for entry in entries(root)}
    return [name for name, done in removed.items() if done], [name for name, done in removed.items() if not done]
