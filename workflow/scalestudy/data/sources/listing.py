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
from scalestudy.data.progress import shown
from scalestudy.data.tar import entries
from scalestudy.errors import UserError, visible

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


Listed = tuple[Index, list[Unused]]
"""Images of a folder or of a part of a container, all of class 0, and entries that were passed over."""


def left_out(unused: Sequence[Unused], root: Path, on_error: str, wrong: Sequence[Unused] = ()) -> list[str]:
    """A line per unused entry; prints their number by reason.

    UserError for a `wrong` one, or an image in another format, unless `on_error` is `skip`.
    """
    wrong = [*wrong, *(one for one in unused if one.why == OTHER_FORMAT)]
    if wrong and on_error != "skip":
        more = f" ({len(wrong) - 1:,} more things there cannot be used)" if len(wrong) > 1 else ""
        remedy = "repair or remove it and start again, or set `data.on_error: skip` to leave such files out"
        raise UserError(f"is {wrong[0].why}{more}", f"{root}/{wrong[0].name}", remedy)
    unused = [*wrong, *(one for one in unused if one.why != OTHER_FORMAT)]
    for why, count in Counter(one.why for one in unused).items():
        first = next(one.name for one in unused if one.why == why)
        print(visible(f"{root}: passed over {count:,} ({why}), the first {first}"), flush=True)
    return [visible(f"{root}/{name}: {why}") for name, why in unused]


def folders_in(root: Path, folder: str, remedy: str, prefix: str = "") -> tuple[list[str], list[Unused]]:
    """Names of the folders, and of links to folders, in a folder below `root`, in order; links that lead nowhere.

    Hidden ones are left out.
    """
    names, dangling = [], []
    try:
        with os.scandir(root / folder) as found:
            for entry in found:
                if entry.name.startswith(".") or not entry.name.startswith(prefix):
                    continue
                if entry.is_dir():
                    names.append(entry.name)
                elif not Path(entry.path).exists():
                    dangling.append(Unused(f"{folder}/{entry.name}".lstrip("/"), NOWHERE))
    except OSError as error:
        raise UserError(f"cannot be listed: {error.strerror}", f"{root}/{folder}".rstrip("/"), remedy) from None
    return sorted(names), sorted(dangling)


def _in_folder(root: Path, folder: str) -> Listed:
    """The images directly in a folder below `root`, in the order of names."""
    head = os.fsencode(folder) + b"/" if folder else b""
    sizes: dict[bytes, int] = {}
    unused = []
    try:
        # As bytes: names may be in any encoding, and take half the memory. The listing itself holds the types, so that
        # only links, and sizes, are asked for.
        with os.scandir(os.fsencode(root / folder)) as found:
            for entry in found:
                if entry.name.startswith(b"."):
                    continue
                if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                    sizes[head + entry.name] = entry.stat().st_size
                elif entry.name.lower().endswith(SUFFIXES + OTHER_SUFFIXES):
                    why = NO_FILE if entry.name.lower().endswith(SUFFIXES) else OTHER_FORMAT
                    unused.append(Unused(os.fsdecode(head + entry.name), why))
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else f"{root}/{folder}"
        raise UserError(f"cannot be read: {error.strerror}", where, "make it readable and start again") from None
    names = sorted(sizes)
    return _index(names, [sizes[name] for name in names]), sorted(unused)


def tar_part(tar: Path, begin: int = 0, size: int | None = None) -> Listed:
    """The images in a tar, or in one that lies inside another, in their order. Of several of one name the last counts,
    as if the tar was unpacked."""
    named = [entry for entry in entries(tar, begin, size) if entry.name.lower().endswith(SUFFIXES)]
    last = {entry.name: entry for entry in named}
    files, unused = [], []
    for entry in named:
        if last[entry.name] is entry and not entry.kind:
            files.append(entry)
        else:
            unused.append(Unused(os.fsdecode(entry.name), NO_FILE if last[entry.name] is entry else REPEATED))
    places = {"shard": np.zeros(len(files), np.int32), "start": np.array([file.start for file in files], np.int64)}
    return _index([file.name for file in files], [file.size for file in files], **places), sorted(unused)


def _index(names: Sequence[bytes], sizes: Sequence[int], **more: Any) -> Index:
    return Index.of(names, np.zeros(len(names), np.int64), np.array(sizes, np.int64), np.zeros(0, np.uint32), **more)


def listed(what: str, jobs: Sequence[Callable[[], Listed]]) -> list[Listed]:
    """What `jobs` find, in their order."""
    with shown(what, 0) as progress, ThreadPoolExecutor(READERS) as pool:

        def done(job: Callable[[], Listed]) -> Listed:
            found = job()
            progress.add(len(found[0]))
            return found

        return list(pool.map(done, jobs))


def folders_listed(what: str, root: Path, folders: Sequence[str]) -> list[Listed]:
    """The images in each of these folders below `root`."""
    return listed(what, [functools.partial(_in_folder, root, folder) for folder in folders])


def whole(parts: Sequence[Index], unused: Sequence[Unused], place: Path, wanted: str) -> Index:
    """All parts as one index; UserError where there is no image in them."""
    if not any(map(len, parts)):
        first = f"; {unused[0].name} is {unused[0].why}" if unused else ""
        raise UserError(f"holds no images in folders of classes{first}", str(place), wanted)
    return joined(parts)


def labelled(part: Index, label: int) -> Index:
    """A part, all of one class."""
    return dataclasses.replace(part, labels=np.full(len(part), label, np.int64))
