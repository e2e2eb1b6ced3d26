"""The folder in which a dataset is made: one process at a time, resumed after a kill, renamed when it is whole."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scalestudy.data.manifest import read_manifest
from scalestudy.data.progress import KEPT
from scalestudy.errors import Skipped, UserError
from scalestudy.files import plain_file, refuse_links_in, sync_directory
from scalestudy.locks import lock_patiently

RECORD = "manifest.json"
"""The copy of the manifest inside a bulk, written last: a bulk that has it was whole."""
MANY_FILES = 100
"""More files than this are not synced one by one."""
NOTED_EVERY_S = 1.0
"""How often the time spent is recorded, so that it is known after a kill."""


def refuse_foreign(bulk: Path, identity: str) -> None:
    """UserError unless `bulk` is empty, or its record is that of this dataset: nothing else is replaced."""
    if bulk.is_symlink():
        raise UserError("is a link; prepared data replaces nothing but its own folder", str(bulk), "remove the link")
    if not bulk.exists() or (bulk.is_dir() and not any(bulk.iterdir())):
        return
    try:
        found = read_manifest(bulk / RECORD).id
    except UserError:
        found = "no record of a dataset"
    if found != identity:
        what = f"prepared data belongs there, but the folder holds something else ({found}): it is left as it is"
        raise UserError(what, str(bulk), "move it away, or delete it if nothing in it is needed")


@dataclass
class Spent:
    """Time that an attempt and those before it took, seconds."""

    seconds: float = 0.0
    cpu_s: float = 0.0


@contextlib.contextmanager
def watched(work: Path) -> Iterator[Callable[[], Spent]]:
    """The folder in which data is made, and the time spent on it, by killed attempts too.

    The folder may hold hours of work, so it stays after a kill and after any error of the system (a full disk, a stale
    file handle), and the next attempt resumes. Success removes it, and so does an error in what was requested
    (UserError, Skipped) whose remedy does not promise to keep it.
    """
    if work.is_symlink():
        raise UserError("is a link; data is made in a separate folder", str(work), "remove the link")
    refuse_links_in(work)
    try:
        with _recorded(work) as spent:
            work.mkdir(parents=True, exist_ok=True)
            yield spent
    except (UserError, Skipped) as error:
        if KEPT not in getattr(error, "remedy", ""):
            _remove(work)
        raise
    _remove(work)


def _remove(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    _spent_file(work).unlink(missing_ok=True)


@contextlib.contextmanager
def _recorded(work: Path) -> Iterator[Callable[[], Spent]]:
    """The time spent, by killed attempts too; recorded next to the folder during the block."""
    before, clock, cpu = _spent_before(work), time.monotonic(), time.process_time()
    stop = threading.Event()

    def spent() -> Spent:
        return Spent(before.seconds + time.monotonic() - clock, before.cpu_s + time.process_time() - cpu)

    def note() -> None:
        with contextlib.suppress(OSError), open(_spent_file(work), "w", encoding="utf-8", opener=plain_file) as file:
            file.write(json.dumps(dataclasses.asdict(spent())))

    def record() -> None:
        while not stop.wait(NOTED_EVERY_S):
            note()

    note()
    recording = threading.Thread(target=record, daemon=True)
    recording.start()
    try:
        yield spent
    finally:
        stop.set()
        recording.join()


def _spent_file(work: Path) -> Path:
    return work.with_name(f"{work.name}.spent")


def _spent_before(work: Path) -> Spent:
    try:
        return Spent(**json.loads(_spent_file(work).read_text()))
    except (OSError, ValueError, TypeError):
        return Spent()


@contextlib.contextmanager
def alone_with(bulk: Path) -> Iterator[Path]:
    """One process at a time makes this bulk, in the folder that is returned, which keeps the work of a killed one.

    On a file system without locks, each process works in a separate folder: two of them cost time, not correctness.
    """
    bulk.parent.mkdir(parents=True, exist_ok=True)
    with open(bulk.with_name(f".{bulk.name}.lock"), "a+b", buffering=0, opener=plain_file) as lock:
        try:
            lock_patiently(lock, f"another process that makes the data in {bulk}", lock=fcntl.lockf)
        except OSError:
            work = bulk.with_name(f".{bulk.name}.making-{socket.gethostname()}-{os.getpid()}")
            try:
                yield work
            finally:
                _remove(work)  # no later attempt would look there
        else:
            yield bulk.with_name(f".{bulk.name}.making-kept")


@contextlib.contextmanager
def becoming(bulk: Path, folder: Path, identity: str) -> Iterator[None]:
    """When the block ends well, sync the folder and rename it to `bulk`; an older bulk of this dataset is removed."""
    yield
    for left in folder.glob(".*"):
        left.unlink()  # begun by a process that was killed
    _sync(folder)
    refuse_foreign(bulk, identity)
    shutil.rmtree(bulk, ignore_errors=True)
    folder.replace(bulk)


def _sync(folder: Path) -> None:
    """Make everything below `folder` survive a crash."""
    files = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    if len(files) > MANY_FILES:
        os.sync()  # one call for a million files, though it waits for files of others too
        return
    for file in files:
        with open(file, "rb") as stream:
            os.fsync(stream.fileno())
    sync_directory(folder)
