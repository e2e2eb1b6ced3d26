"""From a DatasetSpec to data on disk and its manifest: whole or absent, and made again where it was purged."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from scalestudy.data.catalogue import AnyData
from scalestudy.data.disk import full_disk_reported, sync
from scalestudy.data.index import refuse_unlearnable
from scalestudy.data.manifest import (
    SPLITS,
    Manifest,
    bulk_folder,
    is_in_place,
    read_manifest,
    write_manifest,
)
from scalestudy.data.prepare.describe import describe_live
from scalestudy.data.prepare.select import KEPT, usable_in_place
from scalestudy.data.sources import Arrays, EncodedImages, Generated, source_module
from scalestudy.data.verify import RECORD, described_by, is_there, is_usable, record_of, source_files
from scalestudy.errors import Skipped, UserError
from scalestudy.locks import lock_patiently
from scalestudy.spec.config import Site
from scalestudy.spec.ids import dataset_id

ROOM = f"free some space there, or set `paths.data` to a larger place; {KEPT} in `.*.making-kept` there"


def prepare(spec: AnyData, manifest_path: Path, bulk_root: Path | None, site: Site, *, again: bool = False) -> Manifest:
    """Make the data that `spec` describes, unless it is there, and write its manifest last.

    The bulk lies in `bulk/` next to the manifest, or in `bulk_root/<id>/`. Where the data is not available and no place
    for it is configured, the manifest is `skipped` and states why. Raises UserError where a configured place lacks it.
    `again` makes the data anew from the source's files as they are now.
    """
    identity = dataset_id(spec)
    bulk = (bulk_root.absolute() / identity) if bulk_root is not None else manifest_path.parent / "bulk"
    manifest = None if again else record_of(bulk, identity)  # the lock of what is there may be another user's
    with full_disk_reported(manifest_path.parent, ROOM):
        manifest_path.parent.mkdir(parents=True, exist_ok=True)
        if manifest is None:
            with full_disk_reported(bulk, ROOM), _alone_with(bulk) as work:
                try:
                    meanwhile = None if again else record_of(bulk, identity)
                    manifest = meanwhile or _made(spec, bulk, work, manifest_path, site)
                except Skipped as reason:
                    manifest = Manifest(identity, "skipped", spec.to_dict(), reason=str(reason))
        if manifest.bulk == ".":
            place = bulk.name if bulk_root is None else str(bulk)
            manifest = dataclasses.replace(manifest, bulk=place, index=manifest.index and f"{place}/{manifest.index}")
        write_manifest(manifest_path, manifest)
    return manifest


def ensure(manifest_path: Path, site: Site | None = None) -> Manifest:
    """The manifest of data that is there: what was purged since is made again. The manifest itself is not touched.

    A skipped one is returned as it is. Raises UserError where data that is made again differs from its description, and
    where the source's files changed.
    """
    manifest, site = read_manifest(manifest_path), site or Site()
    if is_usable(manifest_path, site):
        return manifest
    bulk = manifest_path.parent / "bulk" if is_in_place(manifest) else bulk_folder(manifest_path, manifest)
    with full_disk_reported(bulk, ROOM), _alone_with(bulk) as work:
        if is_there(manifest_path, manifest):  # made meanwhile by the process that held the lock
            return manifest
        try:
            again = _made(described_by(manifest, manifest_path), bulk, work, manifest_path, site)
        except Skipped as reason:
            raise UserError(f"the data was removed and cannot be made again: {reason}", str(bulk)) from None
    if again.fingerprint != manifest.fingerprint:
        what = "the data was removed; made again, it differs from what the manifest describes"
        raise UserError(what, str(manifest_path), "delete the manifest to use the data as it is now")
    return manifest


def _made(spec: AnyData, bulk: Path, work: Path, manifest_path: Path, site: Site) -> Manifest:
    """Make the data; the manifest of what we store names places as seen from inside the bulk."""
    from scalestudy.data.prepare import write

    begin, cpu, is_resumed = time.monotonic(), time.process_time(), work.exists()
    source: Arrays | EncodedImages | Generated = source_module(spec.to_dict()).provide(spec, site)
    _refuse(spec, source)
    files = source_files(spec, site)
    manifest = Manifest(dataset_id(spec), "ready", spec.to_dict(), classes=source.classes, source_files=files)
    if isinstance(source, Generated):
        return describe_live(manifest, spec.scale, source)
    in_place = isinstance(source, EncodedImages) and usable_in_place(spec, source)
    if isinstance(source, Arrays):
        _refuse_foreign(bulk, manifest.id)
        manifest = write.write_arrays(manifest, spec.scale, source, work)
    elif in_place:
        manifest = write.index_in_place(manifest, spec, source, manifest_path.parent, work)
    else:
        _refuse_foreign(bulk, manifest.id)
        manifest = write.write_pictures(manifest, spec, source, work)
    if not is_resumed:  # else what the killed attempt took is not known
        seconds, cpu_s = time.monotonic() - begin, time.process_time() - cpu
        manifest = dataclasses.replace(manifest, seconds=seconds, cpu_s=cpu_s)
    if in_place:
        return manifest
    manifest = dataclasses.replace(manifest, bulk=".")
    write_manifest(work / RECORD, manifest)
    sync(work)
    before = bulk.with_name(f".{bulk.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        bulk.replace(before)  # to remove it may take longer than this process has
    work.replace(bulk)
    shutil.rmtree(before, ignore_errors=True)
    return manifest


def _refuse(spec: AnyData, source: Arrays | EncodedImages | Generated) -> None:
    """UserError where nothing can be learned from the labels, or tensors are asked for in a form that images have."""
    if not isinstance(source, Generated):
        splits = source.splits if isinstance(source, Arrays) else source.indexes
        train, test = (data[1] if isinstance(data := splits[split], tuple) else data.labels for split in SPLITS)
        root = source.root if isinstance(source, EncodedImages) else None
        refuse_unlearnable(train, test, str(root or f"data.source: {spec.source}"))
    if isinstance(source, EncodedImages):
        return
    for key, value, plain in (("preprocess", spec.preprocess, "none"), ("shard.format", spec.shard.format, "files")):
        if value != plain:
            what = f"`{key.rpartition('.')[2]}: {value}` is for JPEG and PNG files; `{spec.source}` has tensors"
            raise UserError(what, f"data.{key}", "leave it out")


def _refuse_foreign(bulk: Path, identity: str) -> None:
    """UserError unless `bulk` is empty, or its record is that of this dataset: nothing else is replaced."""
    try:
        if read_manifest(bulk / RECORD).id == identity:
            return
    except UserError:
        if not bulk.exists() or (bulk.is_dir() and not any(bulk.iterdir())):
            return
    what = "prepared data belongs there, but the folder holds something else: it is left as it is"
    raise UserError(what, str(bulk), "move it away, or delete it if nothing in it is needed")


@contextlib.contextmanager
def _alone_with(bulk: Path) -> Iterator[Path]:
    """Hold the build lock of a bulk; yields the working folder, with the finished parts of a killed process.

    On a file system without locks, each process works in a separate folder: two of them cost time, not correctness.
    """
    bulk.parent.mkdir(parents=True, exist_ok=True)
    with open(bulk.with_name(f".{bulk.name}.lock"), "a+b", buffering=0) as lock:
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
