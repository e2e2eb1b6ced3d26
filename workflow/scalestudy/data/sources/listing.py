"""Finding the pictures of a source: one pass, many folders at once, kept part by part so that a killed pass goes on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from scalestudy.data.index import Index, joined, load_arrays
from scalestudy.data.progress import Progress
from scalestudy.data.tar import members
from scalestudy.errors import UserError

SUFFIXES = (b".jpg", b".jpeg", b".png")
READERS = 16
"""Folders listed at once: listing waits for a file system, on a network one for most of its time."""
_kept: ContextVar[Path | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """In this block, parts of listings are kept in `folder` and found there again."""
    token = _kept.set(folder)
    try:
        yield
    finally:
        _kept.reset(token)


def folder_part(root: Path, folder: str, label: int) -> Index:
    """The pictures directly in a folder below `root`, in the order of names, all of one class; none where it is not."""
    try:
        # As bytes: names may be in any coding, and take half the memory.
        with os.scandir(os.fsencode(root / folder)) as entries:
            found = sorted(
                (entry.name, entry.stat().st_size) for entry in entries if entry.name.lower().endswith(SUFFIXES)
            )
    except FileNotFoundError:
        found = []
    head = os.fsencode(folder) + b"/" if folder else b""
    return _part([head + name for name, _ in found], [size for _, size in found], label)


def tar_part(tar: Path, begin: int, size: int | None, label: int, shard: int = 0) -> Index:
    """The pictures in a tar, or in one that lies inside another, in their order; names as in the tar."""
    descriptor = os.open(tar, os.O_RDONLY)
    try:
        found = [
            member for member in members(descriptor, str(tar), begin, size) if member.name.lower().endswith(SUFFIXES)
        ]
    finally:
        os.close(descriptor)
    part = _part([member.name for member in found], [member.size for member in found], label)
    places = {"shard": np.full(len(found), shard, np.int32), "start": np.array([m.start for m in found], np.int64)}
    return Index(**{**vars(part), **places})


def _part(names: Sequence[bytes], sizes: Sequence[int], label: int) -> Index:
    offsets = np.zeros(len(names) + 1, np.int64)
    np.cumsum([len(name) for name in names], out=offsets[1:])
    blob = np.frombuffer(b"".join(names), np.uint8)
    labels = np.full(len(names), label, np.int64)
    return Index(blob, offsets, labels, np.array(sizes, np.int64), np.zeros(0, np.uint32))


def listed(what: str, jobs: Sequence[tuple[Path, str, Callable[[], Index]]]) -> list[Index]:
    """The parts that `jobs` make, in their order. A job is the file or folder it looks at, a name for it, the work.

    A part found by an earlier pass that was killed is taken as long as its file or folder has not changed since.
    """
    progress = Progress(what)

    def done(job: tuple[Path, str, Callable[[], Index]]) -> Index:
        part = _kept_or_made(*job)
        progress.add(len(part))
        return part

    pool = ThreadPoolExecutor(min(READERS, max(1, len(jobs))))
    try:
        # The context, which names the folder, is not that of a pool's threads.
        folder = _kept.get()
        return list(pool.map(lambda job: _in_folder(folder, lambda: done(job)), jobs))
    finally:
        pool.shutdown(cancel_futures=True)
        progress.end()


def _in_folder(folder: Path | None, work: Callable[[], Index]) -> Index:
    if folder is None:
        return work()
    with kept_in(folder):
        return work()


def _kept_or_made(place: Path, name: str, make: Callable[[], Index]) -> Index:
    kept = _kept.get()
    if kept is None or not place.exists():
        return make()
    state = place.stat()
    key = hashlib.sha256(os.fsencode(f"{place}\n{name}\n{state.st_mtime_ns} {state.st_size}")).hexdigest()[:24]
    file = kept / f"{key}.npz"
    with contextlib.suppress(OSError, TypeError, ValueError, zipfile.BadZipFile):
        return Index(**load_arrays(file))
    part = make()
    kept.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".part")
    with open(temporary, "wb") as stream:
        np.savez(stream, **vars(part))
    temporary.replace(file)
    return part


def whole(parts: Sequence[Index], place: Path, wanted: str) -> Index:
    """All parts as one index; UserError where there is no picture in them."""
    index = joined(parts) if parts else None
    if index is None or not len(index):
        raise UserError("holds no pictures in folders of classes", str(place), wanted)
    return index
