"""Digests of the small files that say what the samples of a dataset are: they are looked at whenever it is opened."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import xxhash

from scalestudy.data.manifest import INDEX, Manifest, bulk_folder, index_file
from scalestudy.errors import UserError

BLOCK_BYTES = 1 << 20
VALUES = "values of {}.npy"
"""In place of a file's name: the values of a split's array, which can be large, so that they are looked at only where all
of them are read anyway."""


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The XXH3 of each of these files that is there, by name."""
    return {name: _digest(folder / name) for name in names if (folder / name).is_file()}


def unchanged(manifest_path: Path | str, manifest: Manifest, name: str) -> Path:
    """The place of a file of a dataset, as it was prepared.

    Raises UserError where its content is another one. A file that is missing, or of which the manifest says nothing (it
    was prepared before there were digests), is for its reader.
    """
    file = place_of(manifest_path, manifest, name)
    if is_changed(file, manifest.digests.get(name)):
        what = "is not what was prepared: its digest is not the one in the manifest"
        raise UserError(
            what, str(file), f"delete {file.parent if name != INDEX else file}, then prepare the data again"
        )
    return file


def changed(manifest_path: Path | str, manifest: Manifest) -> list[str]:
    """The files that are not what was prepared."""
    return [
        name for name, digest in manifest.digests.items() if is_changed(place_of(manifest_path, manifest, name), digest)
    ]


def place_of(manifest_path: Path | str, manifest: Manifest, name: str) -> Path:
    """Where a file of a dataset is stored: in its bulk, or, for the index of data used in place, next to the manifest."""
    return index_file(manifest_path, manifest) if name == INDEX else bulk_folder(manifest_path, manifest) / name


def is_changed(file: Path, digest: str | None) -> bool:
    """Whether a file that is there has another content than this digest says."""
    try:
        state = file.stat()
        return digest is not None and digest != _known(file, state.st_mtime_ns, state.st_ctime_ns, state.st_size)
    except OSError:
        return False


@functools.lru_cache(maxsize=256)
def _known(file: Path, *_state: int) -> str:
    return _digest(file)


def _digest(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(file, "rb", buffering=0) as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
