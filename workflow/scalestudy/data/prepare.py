"""From a DatasetSpec to data on disk and its manifest: whole or absent, made again where it was purged."""

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

from pydantic import TypeAdapter

from scalestudy.data import store
from scalestudy.data.catalogue import AnyData
from scalestudy.data.manifest import Manifest, bulk_folder, index_file, read_manifest, write_manifest
from scalestudy.data.sources import Arrays, Live, Pictures, source_module
from scalestudy.errors import Skipped, UserError
from scalestudy.files import canonical_json
from scalestudy.spec.config import Site
from scalestudy.spec.ids import dataset_id
from scalestudy.spec.run import Data

RECORD = "manifest.json"
"""The manifest's copy inside a bulk, written last: where it is, the bulk was whole."""


def prepare(spec: AnyData, manifest_path: Path, bulk_root: Path | None, site: Site) -> Manifest:
    """Make the data that `spec` describes, unless it is there, and write its manifest last.

    The bulk lies in `bulk/` beside the manifest, or in `bulk_root/<id>/`. Where the data cannot be had and nothing
    names a place for it, the manifest says `skipped` and why. Raises UserError where a named place does not hold it.
    """
    identity = dataset_id(spec)
    bulk = (bulk_root.absolute() / identity) if bulk_root is not None else manifest_path.parent / "bulk"
    manifest_path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(bulk):
        try:
            manifest = _found(bulk, identity) or _made(spec, bulk, manifest_path, site)
        except Skipped as reason:
            manifest = Manifest(identity, "skipped", spec.plain(), reason=str(reason))
    if manifest.bulk == ".":
        place = bulk.name if bulk_root is None else str(bulk)
        manifest = dataclasses.replace(manifest, bulk=place, index=manifest.index and f"{place}/{manifest.index}")
    write_manifest(manifest_path, manifest)
    return manifest


def ensure(manifest_path: Path, site: Site | None = None) -> Manifest:
    """The manifest of data that is there: what was purged since is made again. The manifest itself is not touched.

    A skipped one is returned as it is. Raises UserError where what is made now differs from what was described.
    """
    manifest = read_manifest(manifest_path)
    if manifest.status == "skipped" or _whole(manifest_path, manifest):
        return manifest
    spec: AnyData = TypeAdapter(Data).validate_json(canonical_json(manifest.spec))
    bulk = manifest_path.parent / "bulk" if manifest.index == store.INDEX else bulk_folder(manifest_path, manifest)
    with _alone(bulk):
        if _whole(manifest_path, manifest):  # made meanwhile, by the process that we waited for
            return manifest
        try:
            again = _made(spec, bulk, manifest_path, site or Site())
        except Skipped as reason:
            raise UserError(f"the data was removed and cannot be had again: {reason}", str(bulk)) from None
    if again.fingerprint != manifest.fingerprint:
        what = "the data was removed, and made again it differs from what the manifest describes"
        raise UserError(what, str(manifest_path), "delete the manifest if the data as it is now is wanted")
    return manifest


def _made(spec: AnyData, bulk: Path, manifest_path: Path, site: Site) -> Manifest:
    """Make the data; the manifest of what we store names places as seen from inside the bulk."""
    started = time.monotonic()
    source: Arrays | Pictures | Live = source_module(spec.plain()).provide(spec, site)
    if spec.preprocess != "none" and not isinstance(source, Pictures):
        what = f"`preprocess: {spec.preprocess}` is for JPEG and PNG files; `{spec.source}` has tensors"
        raise UserError(what, "data.preprocess", "leave it away")
    manifest = Manifest(dataset_id(spec), "ready", spec.plain(), classes=source.classes)
    if isinstance(source, Live):
        return store.live(manifest, spec.scale, source)
    if isinstance(source, Pictures) and store.may_stay(spec, source):
        manifest = store.in_place(manifest, spec, source, manifest_path.parent)
        return dataclasses.replace(manifest, seconds=time.monotonic() - started)
    with _whole_folder(bulk) as folder:
        if isinstance(source, Arrays):
            manifest = store.arrays(manifest, spec.scale, source, folder)
        else:
            manifest = store.pictures(manifest, spec, source, folder)
        manifest = dataclasses.replace(manifest, bulk=".", seconds=time.monotonic() - started)
        write_manifest(folder / RECORD, manifest)
    return manifest


def _whole(manifest_path: Path, manifest: Manifest) -> bool:
    """Whether what the manifest describes is there; of files used where they lie, whether their folder is."""
    if not manifest.bulk:
        return True
    bulk = bulk_folder(manifest_path, manifest)
    if manifest.index == store.INDEX:
        return bulk.is_dir() and index_file(manifest_path, manifest).is_file()
    found = _found(bulk, manifest.id)
    return found is not None and found.fingerprint == manifest.fingerprint


def _found(bulk: Path, identity: str) -> Manifest | None:
    """The record of a bulk, where it is that of this dataset and none of its files was purged."""
    try:
        record = read_manifest(bulk / RECORD)
    except UserError:
        return None
    there = sum(len(names) for _, _, names in os.walk(bulk))
    return record if record.id == identity and there == store.file_count(record) + 1 else None


@contextlib.contextmanager
def _alone(bulk: Path) -> Iterator[None]:
    """One process at a time makes this bulk; what a killed one left half made is removed.

    File systems without locks go without: two makers then cost time, not correctness.
    """
    bulk.parent.mkdir(parents=True, exist_ok=True)
    with open(bulk.with_name(f".{bulk.name}.lock"), "w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX)
        except OSError:
            pass
        else:
            for left in bulk.parent.glob(f".{bulk.name}.making-*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def _whole_folder(bulk: Path) -> Iterator[Path]:
    """A folder that gets the name `bulk`, synced, when the block ends well; else it is removed."""
    folder = bulk.with_name(f".{bulk.name}.making-{socket.gethostname()}-{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
        os.sync()  # one call for a million files
        shutil.rmtree(bulk, ignore_errors=True)
        folder.replace(bulk)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
