"""Copies of a dataset on a node's own disk, made by the process that needs them first; others of the node wait.

    copies = staged(manifest, StageOptions(...), share, site)
    open_dataset(copies.manifest, "train")
    ...
    copies.release()

`file_set` lists the files, `copying` copies them, `cache` keeps the copies. A file under its final name is whole: a
kill loses those that are being copied. Imports no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from scalestudy.data.disk import full_disk_reported, sync
from scalestudy.data.manifest import INDEX, bulk_folder, index_file, is_in_place, read_manifest, write_manifest
from scalestudy.data.pagecache import drop
from scalestudy.data.stage import cache
from scalestudy.data.stage.cache import CacheEntry
from scalestudy.data.stage.copying import Copier, missing
from scalestudy.data.stage.file_set import FileSet, Share, file_set_of
from scalestudy.data.stores import Store, store_at
from scalestudy.emulation.storage import Throttle
from scalestudy.errors import UserError
from scalestudy.files import atomic_path, sha256_text
from scalestudy.spec.config import Site

LOOKED_S = 600.0
"""Copies found whole so recently are not checked again: the ranks of a node come one after the other."""


@dataclass(frozen=True)
class StageOptions:
    """How copies are made."""

    origin: str | None = None
    """A folder or an address that holds the same files as the data; None: where the data lies."""
    streams: int = 4
    mib_per_s: float | None = None
    cold: bool = False
    """Drop the source's files from the page cache first, where they are local."""
    throttle: Throttle | None = None
    """An emulated storage that the copying reads from."""
    label: str = ""
    """Copies of different labels are separate: for logical nodes of a host, and for runs that reuse no copies."""


@dataclass(frozen=True)
class Staged:
    """Copies that this process may read until it releases them, or ends."""

    manifest: Path
    """Names the copies."""
    share: Share
    seconds: float
    """Time in which this process waited for them."""
    copied_bytes: int
    """Bytes that this process copied; 0 where the copies existed, or others of the node made them."""
    bytes: int
    """Of all the copies of this node."""
    files: int
    entry: CacheEntry

    def here(self, files: list[Path]) -> list[Path]:
        """Those of the dataset's files that this node has."""
        return files if self.share.whole else [file for file in files if file.exists()]

    def release(self, remove: bool = False) -> None:
        """No longer use them; `remove`: delete them where nobody else does."""
        self.entry.let_go()
        if remove:
            self.entry.remove()


def staged(manifest_path: Path, options: StageOptions, share: Share, site: Site) -> Staged:
    """The copies, made now where they do not exist; other processes of the node that need the same wait.

    Raises UserError where there is no room, a file cannot be read, or its checksum is wrong.
    """
    begin = time.monotonic()
    manifest = read_manifest(manifest_path)
    if manifest.status == "skipped":
        raise UserError(f"the data was skipped: {manifest.reason}", str(manifest_path))
    origin = options.origin or str(bulk_folder(manifest_path, manifest))
    with contextlib.closing(store_at(origin, kept_open=False)) as store:
        files = file_set_of(manifest_path, manifest, share, store.size)
        # Named by their content, not by where they were copied from.
        source = manifest.source_files if is_in_place(manifest) else None  # of these the fingerprint has a sample
        name = f"{manifest.id}-{sha256_text(manifest.fingerprint + (source.listing if source else ''))[:12]}"
        name += ("" if share.whole else f"-{share.part}of{share.of}") + (f"-{options.label}" if options.label else "")
        entry = CacheEntry(cache.scratch_folder(site), name)
        entry.share()
        with entry.making(), full_disk_reported(entry.folder, cache.LARGER):
            copied = 0
            if not _is_whole(entry, files):
                copied = _copied(entry, files, store, options, site)
                if manifest.index:
                    with atomic_path(entry.folder / INDEX) as beside:  # another run may have it mapped
                        shutil.copyfile(index_file(manifest_path, manifest), beside)
                local = dataclasses.replace(manifest, bulk=".", index=manifest.index and INDEX)
                write_manifest(entry.folder / "manifest.json", local)
                sync(entry.folder)
                entry.record("whole", files.bytes)
            os.utime(entry.record_file)  # it is used now
    place, took = entry.folder / "manifest.json", time.monotonic() - begin
    return Staged(place, share, took, copied, files.bytes, len(files.sizes), entry)


def _is_whole(entry: CacheEntry, files: FileSet) -> bool:
    """Whether the copies are whole, with the lock of those who make them held."""
    looked = abs(time.time() - entry.last_used_s) < LOOKED_S  # a clock may have been set back
    return entry.facts["state"] == "whole" and (looked or not len(missing(files, entry.folder)))


def _copied(entry: CacheEntry, files: FileSet, store: Store, options: StageOptions, site: Site) -> int:
    """Copy the files that are missing; returns the bytes copied."""
    entry.folder.mkdir(exist_ok=True)
    numbers = missing(files, entry.folder)
    limit = None if site.staged_gib is None else int(site.staged_gib * 2**30)
    cache.make_room(entry, int(files.sizes[numbers].sum()), files.bytes, limit)
    if options.cold and store.local:
        drop(store.path(files.name(number)) for number in numbers.tolist())
    throttles = [options.throttle] if options.throttle is not None else []
    if options.mib_per_s is not None:
        throttles.append(Throttle(options.mib_per_s, 0.0, None))
    return Copier(store, files, entry.folder, throttles).copy(numbers, options.streams)


__all__ = ["Share", "StageOptions", "Staged", "staged"]
