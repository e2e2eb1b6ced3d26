"""The files that a node needs of a dataset, with sizes and checksums where they are known. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.index import joined, mapped_index
from scalestudy.data.manifest import SPLITS, Manifest, bulk_folder, index_file
from scalestudy.errors import UserError
from scalestudy.files import read_json

Check = Literal["xxh3_64", "crc32"]


@dataclass(frozen=True)
class Share:
    """Which part of the training data a node has: shards (or files) `part`, `part` + `of`, `part` + 2 `of`, ..."""

    part: int = 0
    of: int = 1

    @property
    def whole(self) -> bool:
        """Whether that is everything."""
        return self.of == 1


@dataclass(frozen=True)
class FileSet:
    """Files that a node needs, by number: a million of them cost arrays, not objects."""

    name: Callable[[int], str]
    """Path of a file below the data's folder."""
    sizes: NDArray[np.int64]
    """[files] bytes."""
    checks: NDArray[np.uint64]
    """[files] checksum of the content, or empty where none is known."""
    check: Check
    """Which checksum `checks` holds."""

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return int(self.sizes.sum())


def file_set_of(manifest_path: Path, manifest: Manifest, share: Share, size_of: Callable[[str], int]) -> FileSet:
    """The files that a node with this share needs; `size_of` queries the storage where the manifest has no size.

    Raises UserError where the data is not stored.
    """
    if not manifest.bulk:
        raise UserError("there is nothing to copy: the data is made while it is read", "stage", "leave `stage` out")
    if manifest.format == "files":
        return _files(manifest_path, manifest, share)
    if manifest.format == "shards" and not manifest.containers:
        return _shards(manifest_path, manifest, share)
    if manifest.format == "shards":
        names = manifest.containers["train"][share.part :: share.of] + manifest.containers.get("test", [])
        return _sized(list(dict.fromkeys(names)), size_of)
    assert share.whole, "check_run refuses shares of data that is one file"
    if manifest.format == "database":
        return _sized(["train.lmdb/data.mdb", "test.lmdb/data.mdb"], size_of)
    return _sized([f"{split}{end}.npy" for split in SPLITS for end in ("", "_labels")], size_of)


def _sized(names: list[str], size_of: Callable[[str], int]) -> FileSet:
    sizes = np.array([size_of(name) for name in names], np.int64)
    return FileSet(names.__getitem__, sizes, np.zeros(0, np.uint64), "xxh3_64")


def _files(manifest_path: Path, manifest: Manifest, share: Share) -> FileSet:
    """Images, a file each."""
    train, test = (mapped_index(index_file(manifest_path, manifest), split) for split in SPLITS)
    needed = joined([train.taken(np.arange(share.part, len(train), share.of)), test])
    return FileSet(needed.path, needed.bytes, needed.checks.astype(np.uint64), "crc32")


def _shards(manifest_path: Path, manifest: Manifest, share: Share) -> FileSet:
    """Shards, from the lists that were written with them."""
    train, test = (read_json(bulk_folder(manifest_path, manifest) / f"{split}.json")["shards"] for split in SPLITS)
    rows = train[share.part :: share.of] + test
    names: list[str] = [row["name"] for row in rows]
    checks = np.array([int(row["xxh3_64"], 16) for row in rows], np.uint64)
    return FileSet(names.__getitem__, np.array([row["bytes"] for row in rows], np.int64), checks, "xxh3_64")


def own_samples(manifest_path: Path, manifest: Manifest, share: Share) -> NDArray[np.int64]:
    """[samples] the training samples that a node with this share has, in ascending order."""
    index = mapped_index(index_file(manifest_path, manifest), "train")
    number = index.shard if len(index.shard) else np.arange(len(index))
    return np.flatnonzero(number % share.of == share.part)
