"""Finding the images of a source: one pass, many folders at once, kept in parts so that a killed pass can resume."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scalestudy.data.index import DAMAGED, Index, joined, load_arrays, printable_path
from scalestudy.data.progress import KEPT, Progress
from scalestudy.data.tar import entries
from scalestudy.errors import UserError
from scalestudy.files import plain_file
from scalestudy.spec.config import Site

SUFFIXES = (b".jpg", b".jpeg", b".png")
SEVERAL = "is not the last of this name in the tar: the last one counts"
READERS = 16
"""Folders listed at once: listing spends most of its time waiting for the file system."""
_kept: ContextVar[Path | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """In this block, parts of listings are kept in `folder`, and reused from there."""
    token = _kept.set(folder)
    try:
        yield
    finally:
        _kept.reset(token)


# What may be read


@dataclass(frozen=True)
class Root:
    """A source's folder, and the places that links below it may lead to: inside it, or inside one of `data_roots`."""

    path: Path
    allowed: tuple[str, ...]
    """Resolved, each with a slash at its end."""

    @classmethod
    def of(cls, path: Path, site: Site) -> Root:
        """The folder may be a link itself."""
        places = (str(path), *site.data_roots.values())
        return cls(path, tuple(f"{os.path.realpath(place).rstrip('/')}/" for place in places))

    def refusal(self, place: str) -> str | None:
        """Why a place is not read, None where it may be; OSError where that cannot be known."""
        try:
            target = os.path.realpath(place, strict=True)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return "is a link to something that does not exist" if os.path.lexists(place) else "is not there"
            raise
        if f"{target}/".startswith(self.allowed):
            return None
        return f"is a link to {printable_path(target)}, which is neither in this folder nor in one of `data_roots`"


class Odd(NamedTuple):
    """Something in a source's folder that is not what its name and place suggest."""

    name: str
    """Its path relative to the source's folder."""
    why: str


@dataclass(frozen=True)
class FilesFound:
    """What a folder, or a part of a container, holds."""

    index: Index
    odd: tuple[Odd, ...] = ()


def left_out(odd: Sequence[Odd], root: Root, on_error: str) -> tuple[str, ...]:
    """A line for each thing that is left out; where `on_error` is not `skip`, UserError that names the first of them."""
    if odd and on_error != "skip":
        more = f" ({len(odd) - 1:,} more things there cannot be used)" if len(odd) > 1 else ""
        remedy = f"repair or remove it and start again ({KEPT}), or set `data.on_error: skip` to leave such files out"
        raise UserError(f"{odd[0].why}{more}", f"{root.path}/{printable_path(odd[0].name)}", remedy)
    return tuple(f"{root.path}/{printable_path(name)}: {why}" for name, why in odd)


# What is there


def folders_in(root: Root, folder: str, remedy: str, prefix: str = "") -> tuple[list[str], list[Odd]]:
    """Names of the folders in a folder below `root`, in order, hidden ones left out; and links that lead to none.

    Raises UserError where it cannot be listed, or is itself a link that is not followed.
    """
    place = root.path / folder
    names, odd = [], []
    try:
        if why := root.refusal(str(place)):
            raise UserError(why, str(place), remedy)
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(prefix) or entry.name.startswith("."):
                    continue
                if not entry.is_symlink():
                    if entry.is_dir(follow_symlinks=False):
                        names.append(entry.name)
                elif entry.is_file():
                    continue  # not a class
                elif why := root.refusal(entry.path):
                    odd.append(Odd(f"{folder}/{entry.name}".lstrip("/"), why))
                elif entry.is_dir():
                    names.append(entry.name)
    except OSError as error:
        raise UserError(f"cannot be listed: {error.strerror}", str(place), remedy) from None
    return sorted(names), sorted(odd)


def folder_part(root: Root, folder: str) -> FilesFound:
    """The images directly in a folder below `root`, in the order of names, all of class 0, and what only seem to be.

    Raises UserError where it cannot be listed.
    """
    head = os.fsencode(folder) + b"/" if folder else b""
    found, odd = [], []
    try:
        # As bytes: names may be in any encoding, and take half the memory.
        with os.scandir(os.fsencode(root.path / folder)) as entries:
            for entry in entries:
                if not entry.name.lower().endswith(SUFFIXES):
                    continue
                # The listing itself holds the types: no query to the file system for each of a million files.
                if not entry.is_file(follow_symlinks=False) and (why := _not_a_file(root, entry)):
                    odd.append(Odd(os.fsdecode(head + entry.name), why))
                else:
                    found.append((entry.name, entry.stat().st_size))
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else f"{root.path}/{folder}"
        remedy = f"make it readable and start again: {KEPT}"
        raise UserError(f"cannot be read: {error.strerror}", printable_path(where), remedy) from None
    found.sort()
    part = _part([head + name for name, _ in found], [size for _, size in found], 0)
    return FilesFound(part, tuple(sorted(odd)))


def _not_a_file(root: Root, entry: os.DirEntry[bytes]) -> str | None:
    """Why an entry that is not a plain file cannot be used; None for a link to a file that may be followed."""
    if not entry.is_symlink():
        return f"is {_kind(entry.stat(follow_symlinks=False))}, not a file"
    if why := root.refusal(os.fsdecode(entry.path)):
        return why
    return None if entry.is_file() else f"is a link to {_kind(entry.stat())}, not to a file"


def _kind(state: os.stat_result) -> str:
    for test, name in ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket")):
        if test(state.st_mode):
            return name
    return "a device"


def labelled(part: Index, label: int) -> Index:
    """A part, all of one class."""
    return dataclasses.replace(part, labels=np.full(len(part), label, np.int64))


def tar_part(tar: Path, begin: int, size: int | None, label: int, shard: int = 0) -> FilesFound:
    """The images in a tar, or in one that lies inside another, in their order, and what only looks like one; names as in
    the tar. Of several of one name the last counts, as if the tar was unpacked."""
    descriptor = os.open(tar, os.O_RDONLY)
    try:
        named = [entry for entry in entries(descriptor, str(tar), begin, size) if entry.name.lower().endswith(SUFFIXES)]
    finally:
        os.close(descriptor)
    last = {entry.name: entry for entry in named}
    odd = [Odd(os.fsdecode(entry.name), f"is {entry.kind}, not a file") for entry in last.values() if entry.kind]
    odd += [Odd(os.fsdecode(entry.name), SEVERAL) for entry in named if last[entry.name] is not entry]
    found = [entry for entry in named if last[entry.name] is entry and not entry.kind]
    part = _part([member.name for member in found], [member.size for member in found], label)
    places = {"shard": np.full(len(found), shard, np.int32), "start": np.array([m.start for m in found], np.int64)}
    return FilesFound(Index(**{**vars(part), **places}), tuple(sorted(odd)))


def _part(names: Sequence[bytes], sizes: Sequence[int], label: int) -> Index:
    offsets = np.zeros(len(names) + 1, np.int64)
    np.cumsum([len(name) for name in names], out=offsets[1:])
    blob = np.frombuffer(b"".join(names), np.uint8)
    labels = np.full(len(names), label, np.int64)
    return Index(blob, offsets, labels, np.array(sizes, np.int64), np.zeros(0, np.uint32))


def listed(what: str, jobs: Sequence[tuple[Path, str, Callable[[], FilesFound]]]) -> list[FilesFound]:
    """The parts that `jobs` make, in their order. A job is the file or folder it looks at, a name for it, the work.

    A part found by an earlier pass that was killed is taken as long as its file or folder has not changed since.
    """
    progress = Progress(what)

    def done(job: tuple[Path, str, Callable[[], FilesFound]]) -> FilesFound:
        part = _kept_or_made(*job)
        progress.add(len(part.index))
        return part

    pool = ThreadPoolExecutor(min(READERS, max(1, len(jobs))))
    try:
        # The context, which names the folder, is not that of a pool's threads.
        folder = _kept.get()
        return list(pool.map(lambda job: _in_folder(folder, lambda: done(job)), jobs))
    finally:
        pool.shutdown(cancel_futures=True)
        progress.end()


def folders_listed(what: str, root: Root, folders: Sequence[str]) -> list[FilesFound]:
    """The images in each of these folders below `root`."""
    # What links may lead to is part of the name, so that a part found under another rule is not taken.
    jobs = [
        (root.path / folder, "\n".join((folder, *root.allowed)), functools.partial(folder_part, root, folder))
        for folder in folders
    ]
    return listed(what, jobs)


def _in_folder(folder: Path | None, work: Callable[[], FilesFound]) -> FilesFound:
    if folder is None:
        return work()
    with kept_in(folder):
        return work()


def _kept_or_made(place: Path, name: str, make: Callable[[], FilesFound]) -> FilesFound:
    """A part, kept where nothing in it is odd: an odd thing may be repaired without a change of its folder."""
    kept = _kept.get()
    if kept is None:
        return make()
    try:
        state = place.stat()
    except OSError:
        return make()  # which raises the error
    key = hashlib.sha256(os.fsencode(f"{place}\n{name}\n{state.st_mtime_ns} {state.st_size}")).hexdigest()[:24]
    file = kept / f"{key}.npz"
    with contextlib.suppress(*DAMAGED):
        return FilesFound(Index(**load_arrays(file)))
    part = make()
    if part.odd:
        return part
    kept.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".part")
    with open(temporary, "wb", opener=plain_file) as stream:
        np.savez(stream, **vars(part.index))
    temporary.replace(file)
    return part


def whole(parts: Sequence[Index], odd: Sequence[Odd], place: Path, wanted: str) -> Index:
    """All parts as one index; UserError where there is no image in them."""
    index = joined(parts) if parts else None
    if index is None or not len(index):
        first = f"; {printable_path(odd[0].name)} {odd[0].why}" if odd else ""
        raise UserError(f"holds no images in folders of classes{first}", str(place), wanted)
    return index
