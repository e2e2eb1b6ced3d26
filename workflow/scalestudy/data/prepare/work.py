"""The folder in which a dataset is made: one process at a time, resumed after a kill, renamed when it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from scalestudy.data.manifest import read_manifest
from scalestudy.data.progress import KEPT
from scalestudy.errors import Skipped, UserError
from scalestudy.files import plain_file, refuse_link, sync_directory
from scalestudy.locks import lock_patiently

RECORD = "manifest.json"
"""The copy of the manifest inside a bulk, written last: a bulk that has it was whole."""
MANY_FILES = 100
"""More files than this are not synced one by one."""


def refuse_foreign(bulk: Path, identity: str) -> None:
    """UserError unless `bulk` is empty, or its record is that of this dataset: nothing else is replaced."""
    refuse_link(bulk)
    if not bulk.exists() or (bulk.is_dir() and not any(bulk.iterdir())):
        return
    try:
        found = read_manifest(bulk / RECORD).id
    except UserError:
        found = "no record of a dataset"
    if found != identity:
        what = f"prepared data belongs there, but the folder holds something else ({found}): it is left as it is"
        raise UserError(what, str(bulk), "move it away, or delete it if nothing in it is needed")


@contextlib.contextmanager
def working_folder(work: Path) -> Iterator[None]:
    """The folder in which data is made.

    It may hold hours of work, so it stays after a kill and after any error of the system (a full disk, a stale file
    handle), and the next attempt resumes. Success removes it, and so does an error in what was requested (UserError,
    Skipped) whose remedy does not promise to keep it.
    """
    refuse_link(work)
    work.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except (UserError, Skipped) as error:
        if KEPT not in getattr(error, "remedy", ""):
            shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def alone_with(bulk: Path) -> Iterator[Path]:
    """Hold the build lock of a bulk; yields the working folder, with the finished parts of a killed process.

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
                shutil.rmtree(work, ignore_errors=True)  # no later attempt would look there
        else:
            yield bulk.with_name(f".{bulk.name}.making-kept")


def publish(bulk: Path, folder: Path, identity: str) -> None:
    """Sync the folder and rename it to `bulk`; an older bulk of this dataset is removed."""
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
