"""Verification of prepared data: everything that its manifest describes is there, and the source's files have not changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from scalestudy.data.catalogue import AnyData
from scalestudy.data.manifest import (
    REMEDY,
    Manifest,
    SourceFiles,
    bulk_folder,
    index_file,
    is_in_place,
    read_manifest,
)
from scalestudy.errors import UserError
from scalestudy.files import canonical_json, expanded
from scalestudy.spec.config import Site
from scalestudy.spec.run import Data

MAX_EXAMINED = 100_000
"""Files whose size and time are read; of more, so many, evenly spread. Names are those of all files."""
READERS = 16
RECORD = "manifest.json"
"""The copy of the manifest inside a bulk, written last: a bulk that has it was whole."""
NOT_OURS = (RECORD, "lock.mdb")
"""Files in a bulk that its size leaves out: the manifest's copy, and what readers of a database leave."""


def is_usable(manifest_path: Path, site: Site) -> bool:
    """Whether everything that the manifest describes is there, or it is skipped. UserError where the source's files changed."""
    manifest = read_manifest(manifest_path)
    _refuse_changed(manifest.source_files, source_files(described_by(manifest, manifest_path), site), manifest_path)
    return manifest.status == "skipped" or is_there(manifest_path, manifest)


def described_by(manifest: Manifest, manifest_path: Path) -> AnyData:
    """The form of the data that a manifest is about; UserError where this version does not have it."""
    try:
        spec: AnyData = TypeAdapter(Data).validate_json(canonical_json(manifest.spec))
    except ValidationError as error:
        what = f"is not a manifest: `spec`: {error.errors()[0]['msg']}"
        raise UserError(what, str(manifest_path), REMEDY) from None
    return spec


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


def _refuse_changed(before: SourceFiles | None, now: SourceFiles | None, manifest: Path) -> None:
    """Raise UserError where the source's files are not those that the data was made from. A source that is gone is none."""
    if before is None or now is None or before == now:
        return
    what = f"files were added, removed or changed since the data was prepared from {before.root}"
    raise UserError(what, now.root, f"use the data as it is now: scalestudy prepare --again --out {manifest}")


def is_there(manifest_path: Path, manifest: Manifest) -> bool:
    """Whether what the manifest describes is there; of files used where they lie, whether their folder is."""
    if not manifest.bulk:
        return True
    bulk = bulk_folder(manifest_path, manifest)
    if is_in_place(manifest):
        return bulk.is_dir() and index_file(manifest_path, manifest).is_file()
    record = record_of(bulk, manifest.id)
    return record is not None and record.fingerprint == manifest.fingerprint


def record_of(bulk: Path, identity: str) -> Manifest | None:
    """The record of a bulk, where it is that of this dataset and none of its files was purged."""
    try:
        record = read_manifest(bulk / RECORD)
    except UserError:
        return None
    return record if record.id == identity and is_whole(bulk, record) else None


def is_whole(bulk: Path, manifest: Manifest) -> bool:
    """Whether all files of a stored bulk are there, by their number or their bytes."""
    if manifest.format in ("shards", "database"):
        return size_of(bulk) == manifest.bulk_bytes
    files = manifest.train.samples + manifest.test.samples + 1 if manifest.format == "files" else 4
    return sum(1 for _ in _files(bulk)) == files


def size_of(folder: Path) -> int:
    """Bytes of the files of a bulk."""
    return sum(Path(place, name).stat().st_size for place, name in _files(folder))


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Folder and name of all files below a folder, except NOT_OURS and hidden ones, which desktops and NFS leave."""
    for place, _, names in os.walk(folder):
        yield from ((place, name) for name in names if name not in NOT_OURS and name[0] != ".")
