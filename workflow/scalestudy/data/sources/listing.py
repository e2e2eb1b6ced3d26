"""Listing of a source's images: one pass, many folders at once. Links are followed wherever they lead."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scalestudy.data.index import Index, joined, printable_path
from scalestudy.data.progress import Progress
from scalestudy.data.tar import entries
from scalestudy.errors import UserError

SUFFIXES = (b".jpg", b".jpeg", b".png")
OTHER_SUFFIXES = (b".webp", b".bmp", b".jfif", b".tif", b".tiff", b".gif", b".ppm", b".pgm")
"""Images that other loaders of image folders read."""
OTHER_FORMAT = "an image by its name, and neither .jpg, .jpeg nor .png"
NO_FILE = "not a file, or a link that leads to none"
NOWHERE = "a link to something that does not exist"
REPEATED = "not the last of its name in the tar"
READERS = 16
"""Folders listed at once: listing spends most of its time waiting for the file system."""


class Unused(NamedTuple):
    """An entry of a source that is not used."""

    name: str
    """Its path relative to the source's folder."""
    why: str


@dataclass(frozen=True)
class FilesFound:
    """Images of a folder or of a part of a container, and entries that were passed over."""

    index: Index
    passed_over: tuple[Unused, ...] = ()


def left_out(passed_over: Sequence[Unused], root: Path, on_error: str, wrong: Sequence[Unused] = ()) -> tuple[str, ...]:
    """A line per unused entry; prints their number by reason.

    UserError for a `wrong` one, or an image in another format, unless `on_error` is `skip`.
    """
    wrong = [*wrong, *(one for one in passed_over if one.why == OTHER_FORMAT)]
    passed_over = [one for one in passed_over if one.why != OTHER_FORMAT]
    if wrong and on_error != "skip":
        more = f" ({len(wrong) - 1:,} more things there cannot be used)" if len(wrong) > 1 else ""
        remedy = "repair or remove it and start again, or set `data.on_error: skip` to leave such files out"
        raise UserError(f"is {wrong[0].why}{more}", f"{root}/{printable_path(wrong[0].name)}", remedy)
    unused = [*wrong, *passed_over]
    for why, count in Counter(one.why for one in unused).items():
        first = printable_path(next(one.name for one in unused if one.why == why))
        print(f"{root}: passed over {count:,} ({why}), the first {first}", flush=True)
    return tuple(f"{root}/{printable_path(name)}: {why}" for name, why in unused)


def folders_in(root: Path, folder: str, remedy: str, prefix: str = "") -> tuple[list[str], list[Unused]]:
    """Names of the folders, and of links to folders, in a folder below `root`, in order; links that lead nowhere.

    Hidden ones are left out.
    """
    names, dangling = [], []
    try:
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if entry.name.startswith(prefix) and not entry.name.startswith("."):
                    if _is(os.path.isdir, entry):
                        names.append(entry.name)
                    elif not Path(entry.path).exists():
                        dangling.append(Unused(f"{folder}/{entry.name}".lstrip("/"), NOWHERE))
    except OSError as error:
        raise UserError(f"cannot be listed: {error.strerror}", f"{root}/{folder}".rstrip("/"), remedy) from None
    return sorted(names), sorted(dangling)


def _is(test: Callable[[str | bytes], bool], entry: os.DirEntry[str] | os.DirEntry[bytes]) -> bool:
    # The listing itself holds the types: no query to the file system for each of a million files, only for links.
    plain = entry.is_file if test is os.path.isfile else entry.is_dir
    return plain(follow_symlinks=False) or test(entry.path)


def folder_part(root: Path, folder: str) -> FilesFound:
    """The images directly in a folder below `root`, in the order of names, all of class 0."""
    head = os.fsencode(folder) + b"/" if folder else b""
    sizes: dict[bytes, int] = {}
    passed_over = []
    try:
        # As bytes: names may be in any encoding, and take half the memory.
        with os.scandir(os.fsencode(root / folder)) as entries:
            for entry in entries:
                if entry.name.lower().endswith(SUFFIXES):
                    if _is(os.path.isfile, entry):
                        sizes[head + entry.name] = entry.stat().st_size
                    else:
                        passed_over.append(Unused(os.fsdecode(head + entry.name), NO_FILE))
                elif entry.name.lower().endswith(OTHER_SUFFIXES):
                    passed_over.append(Unused(os.fsdecode(head + entry.name), OTHER_FORMAT))
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else f"{root}/{folder}"
        remedy = "make it readable and start again"
        raise UserError(f"cannot be read: {error.strerror}", printable_path(where), remedy) from None
    names = sorted(sizes)
    return FilesFound(_part(names, [sizes[name] for name in names], 0), tuple(sorted(passed_over)))


def labelled(part: Index, label: int) -> Index:
    """A part, all of one class."""
    return dataclasses.replace(part, labels=np.full(len(part), label, np.int64))


def tar_part(tar: Path, begin: int, size: int | None, label: int, shard: int = 0) -> FilesFound:
    """The images in a tar, or in one that lies inside another, in their order. Of several of one name the last counts,
    as if the tar was unpacked."""
    descriptor = os.open(tar, os.O_RDONLY)
    try:
        named = [entry for entry in entries(descriptor, str(tar), begin, size) if entry.name.lower().endswith(SUFFIXES)]
    finally:
        os.close(descriptor)
    last = {entry.name: entry for entry in named}
    files = [entry for entry in named if last[entry.name] is entry and not entry.kind]
    passed_over = sorted(
        Unused(os.fsdecode(entry.name), NO_FILE if last[entry.name] is entry else REPEATED)
        for entry in named
        if entry.kind or last[entry.name] is not entry
    )
    part = _part([member.name for member in files], [member.size for member in files], label)
    places: dict[str, Any] = {
        "shard": np.full(len(files), shard, np.int32),
        "start": np.array([m.start for m in files], np.int64),
    }
    return FilesFound(dataclasses.replace(part, **places), tuple(passed_over))


def _part(names: Sequence[bytes], sizes: Sequence[int], label: int) -> Index:
    offsets = np.zeros(len(names) + 1, np.int64)
    np.cumsum([len(name) for name in names], out=offsets[1:])
    blob = np.frombuffer(b"".join(names), np.uint8)
    labels = np.full(len(names), label, np.int64)
    return Index(blob, offsets, labels, np.array(sizes, np.int64), np.zeros(0, np.uint32))


def listed(what: str, jobs: Sequence[Callable[[], FilesFound]]) -> list[FilesFound]:
    """The parts that `jobs` make, in their order."""
    progress = Progress(what)

    def done(job: Callable[[], FilesFound]) -> FilesFound:
        part = job()
        progress.add(len(part.index))
        return part

    pool = ThreadPoolExecutor(min(READERS, max(1, len(jobs))))
    try:
        return list(pool.map(done, jobs))
    finally:
        pool.shutdown(cancel_futures=True)
        progress.end()


def folders_listed(what: str, root: Path, folders: Sequence[str]) -> list[FilesFound]:
    """The images in each of these folders below `root`."""
    return listed(what, [functools.partial(folder_part, root, folder) for folder in folders])


def whole(parts: Sequence[Index], unused: Sequence[Unused], place: Path, wanted: str) -> Index:
    """All parts as one index; UserError where there is no image in them."""
    index = joined(parts) if parts else None
    if index is None or not len(index):
        first = f"; {printable_path(unused[0].name)} is {unused[0].why}" if unused else ""
        raise UserError(f"holds no images in folders of classes{first}", str(place), wanted)
    return index
