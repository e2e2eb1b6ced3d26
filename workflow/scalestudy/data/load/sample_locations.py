"""Where the samples of one split lie, and their labels, checked against the manifest. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.index import DAMAGED, Index, check_labels, mapped_index
from scalestudy.data.manifest import Manifest, Split, bulk_folder, index_file, shard_path
from scalestudy.errors import UserError


class SampleLocations:
    """The fields of an index that reading needs, mapped: a million samples cost address space, not memory."""

    def __init__(self, index: Index, name: Callable[[int], str], names: list[str] | None) -> None:
        self.labels, self.sizes, self.checks = index.labels, index.bytes, index.checks
        self.shard, self.start, self.height, self.width = index.shard, index.start, index.height, index.width
        self.name, self.names = name, names


def locations_of(manifest_path: Path | str, manifest: Manifest, split: Split) -> SampleLocations:
    """The places of one split; UserError where its index is missing, damaged, or contradicts the manifest."""
    places = _locations(manifest_path, manifest, split)
    if len(places.labels) != manifest.split(split).samples:
        what = f"the index has {len(places.labels):,} samples, the manifest {manifest.split(split).samples:,}"
        raise UserError(what, str(manifest_path), "prepare the data again")
    if (stored := int(places.sizes.sum())) != manifest.split(split).bytes:
        what = f"the index has {stored:,} bytes of samples, the manifest {manifest.split(split).bytes:,}"
        raise UserError(what, str(manifest_path), "prepare the data again")
    check_labels(places.labels, manifest.classes, manifest_path)
    return places


def _locations(manifest_path: Path | str, manifest: Manifest, split: Split) -> SampleLocations:
    if manifest.format == "raw":
        return _raw_locations(manifest_path, manifest, split)
    index = mapped_index(index_file(manifest_path, manifest), split)
    if manifest.format != "shards":
        return SampleLocations(index, index.path, None)
    bulk = bulk_folder(manifest_path, manifest)
    count = int(index.shard.max()) + 1 if len(index.shard) else 0
    if len(index.shard) != len(index) or len(index.start) != len(index) or count > manifest.split(split).shards:
        what = f"the index has {count:,} shards, the manifest {manifest.split(split).shards:,}"
        raise UserError(what, str(manifest_path), "prepare the data again")
    names = [str(shard_path(manifest_path, manifest, split, k).relative_to(bulk)) for k in range(count)]
    return SampleLocations(index, lambda sample: names[index.shard[sample]], names)


def _raw_locations(manifest_path: Path | str, manifest: Manifest, split: Split) -> SampleLocations:
    """Images of one size in one .npy file."""
    bulk = bulk_folder(manifest_path, manifest)
    try:
        pixels = np.load(bulk / f"{split}.npy", mmap_mode="r")
        labels = np.array(np.load(bulk / f"{split}_labels.npy"))
    except DAMAGED as error:
        remedy = "prepare it again"
        raise UserError(f"prepared data cannot be read: {error}", str(bulk / f"{split}.npy"), remedy) from None
    count, height, width = pixels.shape[:3]
    size = height * width * 3

    def all_same(value: int, kind: Any) -> NDArray[Any]:
        return np.broadcast_to(np.array(value, kind), (count,))

    index = Index(
        names=np.zeros(0, np.uint8),
        offsets=np.zeros(0, np.int64),
        labels=labels,
        bytes=all_same(size, np.int64),
        checks=np.zeros(0, np.uint32),
        shard=all_same(0, np.int32),
        start=pixels.offset + size * np.arange(count),
        width=all_same(width, np.uint16),
        height=all_same(height, np.uint16),
    )
    name = f"{split}.npy"
    return SampleLocations(index, lambda _sample: name, [name])
