"""Listing of a source's images: one pass, many folders at once. Links are followed wherever they lead."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scalestudy.data.index import Index, joined
from scalestudy.data.progress import Progress
from scalestudy.data.tar import entries
from scalestudy.errors import UserError, visible

SUFFIXES = (b".jpg", b".jpeg", b".png")
OTHER_SUFFIXES = (b".webp", b".bmp", b".jfif", b".tif", b".tiff", b".gif", b".ppm", b".pgm")
"""Images that other loaders of image folders read."""
OTHER_FORMAT = "an image by its name, and neither .jpg, .jpeg nor .png"
NO_FILE = "not a file, or a link that leads to none"
NESTED = "a folder inside that of a class: its images would not be used"
READERS = 16
"""Folders listed at once: listing spends most of its time waiting for the file system."""


class Unusable(NamedTuple):
    """An entry of a source that cannot be used."""

    name: str
    """Its path relative to the source's folder."""
    why: str


Listed = tuple[Index, list[Unusable]]
"""Images of a folder or of a part of a container, all of class 0, and entries that cannot be used."""


def left_out(wrong: Sequence[Unusable], root: Path, on_error: str) -> list[str]:
    """A line per entry that cannot be used, and their number by reason printed; UserError unless `on_error` is `skip`."""
    if wrong and on_error != "skip":
        more = f" ({len(wrong) - 1:,} more things there cannot be used)" if len(wrong) > 1 else ""
        remedy = "repair or remove it and start again, or set `data.on_error: skip` to leave such files out"
        raise UserError(f"is {wrong[0].why}{more}", f"{root}/{wrong[0].name}", remedy)
    for why, count in Counter(one.why for one in wrong).items():
        print(visible(f"{root}: left out {count:,}: {why}"), flush=True)
    return [visible(f"{root}/{name}: {why}") for name, why in wrong]


def folders_in(root: Path, folder: str, remedy: str, prefix: str = "") -> list[str]:
    """Names of the folders in a folder below `root`, and of links to folders or to nothing, in order; no hidden ones."""
    try:
        with os.scandir(root / folder) as listing:
            named = [one for one in listing if one.name.startswith(prefix) and not one.name.startswith(".")]
            return sorted(one.name for one in named if one.is_dir() or not Path(one.path).exists())
    except OSError as error:
        raise UserError(f"cannot be listed: {error.strerror}", f"{root}/{folder}".rstrip("/"), remedy) from None


def _in_folder(root: Path, folder: str) -> Listed:
    """The images directly in a folder below `root`, in the order of names; none where it is a link to nothing."""
    # As bytes: names may be in any encoding, and take half the memory. The listing itself holds the types, so that only
    # links, and sizes, are asked for.
    place, head = os.fsencode(root / folder), os.fsencode(folder) + b"/" if folder else b""
    sizes: dict[bytes, int] = {}
    wrong = []
    try:
        with os.scandir(place) as listing:
            for entry in listing:
                if entry.name.startswith(b"."):
                    continue
                if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                    sizes[head + entry.name] = entry.stat().st_size
                elif entry.name.lower().endswith(SUFFIXES + OTHER_SUFFIXES):
                    why = NO_FILE if entry.name.lower().endswith(SUFFIXES) else OTHER_FORMAT
                    wrong.append(Unusable(os.fsdecode(head + entry.name), why))
                elif entry.is_dir():
                    wrong.append(Unusable(os.fsdecode(head + entry.name), NESTED))
    except OSError as error:
        if not isinstance(error, FileNotFoundError) or error.filename != place:  # else a link to nothing
            where = os.fsdecode(error.filename or place)
            raise UserError(f"cannot be read: {error.strerror}", where, "make it readable and start again") from None
    names = sorted(sizes)
    return _index(names, [sizes[name] for name in names]), sorted(wrong)


def tar_part(tar: Path, begin: int = 0, size: int | None = None) -> Listed:
    """The images in a tar, or in one that lies inside another, in their order. Of several of one name the last counts,
    as if the tar was unpacked."""
    named = [entry for entry in entries(tar, begin, size) if entry.name.lower().endswith(SUFFIXES)]
    last = {entry.name: entry for entry in named}
    named = [entry for entry in named if last[entry.name] is entry]
    files = [entry for entry in named if entry.is_file]
    wrong = [Unusable(os.fsdecode(entry.name), NO_FILE) for entry in named if not entry.is_file]
    places = {"shard": np.zeros(len(files), np.int32), "start": np.array([file.start for file in files], np.int64)}
    return _index([file.name for file in files], [file.size for file in files], **places), sorted(wrong)


def _index(names: Sequence[bytes], sizes: Sequence[int], **more: Any) -> Index:
    return Index.of(names, np.zeros(len(names), np.int64), np.array(sizes, np.int64), np.zeros(0, np.uint32), **more)


def listed(what: str, jobs: Sequence[Callable[[], Listed]]) -> list[Listed]:
    """What `jobs` find, in their order."""
    with Progress(what) as progress, ThreadPoolExecutor(READERS) as pool:

        def done(job: Callable[[], Listed]) -> Listed:
            listing = job()
            progress.add(len(listing[0]))
            return listing

        return list(pool.map(done, jobs))


def folders_listed(what: str, root: Path, folders: Sequence[str]) -> list[Listed]:
    """The images in each of these folders below `root`."""
    return listed(what, [functools.partial(_in_folder, root, folder) for folder in folders])


def whole(parts: Sequence[Index], wrong: Sequence[Unusable], place: Path, layout: str) -> Index:
    """All parts as one index; UserError where there is no image in them."""
    if not any(map(len, parts)):
        first = f"; {wrong[0].name} is {wrong[0].why}" if wrong else ""
        raise UserError(f"holds no images in folders of classes{first}", str(place), layout)
    return joined(parts)


def labelled(part: Index, label: int) -> Index:
    """A part, all of one class."""
    return dataclasses.replace(part, labels=np.full(len(part), label, np.int64))
