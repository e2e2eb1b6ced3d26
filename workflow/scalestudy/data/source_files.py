"""State of a source's folder: a digest of the listing of its files."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scalestudy.data.catalogue import AnyData
from scalestudy.data.manifest import SourceFiles
from scalestudy.errors import UserError
from scalestudy.files import expanded
from scalestudy.spec.config import Site

MAX_EXAMINED = 100_000
"""Files whose size and time are read; of more, so many, evenly spread. Names are those of all files."""
READERS = 16


def source_files(spec: AnyData, site: Site) -> SourceFiles | None:
    """The files below the folder that `data.root`, or the site's `data_roots`, names; None where there is none.

    Hidden files are left out, links followed.
    """
    named = getattr(spec, "root", None) or site.data_roots.get(str(getattr(spec, "source", "")))
    folder = None if named is None else expanded(named).absolute()
    if folder is None or not folder.is_dir():
        return None
    root, files, seen = str(folder), [], set()
    for place, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(place)
        shown = [] if real in seen else [name for name in folders if not name.startswith(".")]
        files += [f"{place}/{name}" for name in names if real not in seen and not name.startswith(".")]
        folders[:] = shown  # none below a link to a folder above it
        seen.add(real)
    files.sort()
    with ThreadPoolExecutor(READERS) as pool:
        states = list(pool.map(_state, files[:: max(1, -(-len(files) // MAX_EXAMINED))]))
    digest = hashlib.sha256("\0".join(file.removeprefix(root) for file in files).encode(errors="surrogateescape"))
    digest.update(repr(states).encode())
    return SourceFiles(root, digest.hexdigest())


def _state(file: str) -> tuple[int, int]:
    """Size and modification time in ns; zeros of a link that leads nowhere."""
    try:
        state = Path(file).stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def refuse_changed(before: SourceFiles | None, now: SourceFiles | None, manifest: Path) -> None:
    """Raise UserError where the source's files are not those that the data was made from. A source that is gone is none."""
    if before is None or now is None or before == now:
        return
    if before.root != now.root:
        what = f"the data was prepared from {before.root}, and {now.root} is configured now"
    else:
        what = "files were added, removed or changed since the data was prepared"
    raise UserError(what, now.root, f"use the data as it is now: scalestudy prepare --again --out {manifest}")
