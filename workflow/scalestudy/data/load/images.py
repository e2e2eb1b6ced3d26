"""One split of stored images as batches, straight into given memory.

Imports no torch: worker processes that have the kernel never need it, and it would take 270 MiB in each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.data.decode import images
from scalestudy.data.index import Index, mapped_array, mapped_index
from scalestudy.data.load.readers import DatabaseReader, IndexedReader, MemoryReader
from scalestudy.data.load.sampler import storage_order
from scalestudy.data.load.stream import StreamReader
from scalestudy.data.manifest import Manifest, Split, bulk_folder, index_file, replace_remedy, shard_names
from scalestudy.data.sources.samples import ArrayBatch, Dataset, DatasetHandle, Indices, Memory, Transform
from scalestudy.data.stores import store_at
from scalestudy.errors import UserError

DEFAULT_SIDE = 224
"""Height and width of a training image made from JPEG or raw images."""


class ImageDataset(Dataset):
    """Images, coded or as pixels; a batch holds a region of each, resized to a square, channels last."""

    def __init__(self, handle: DatasetHandle, manifest: Manifest) -> None:
        super().__init__(manifest, handle.split)
        self.image_size = (DEFAULT_SIDE, DEFAULT_SIDE)
        self.handle, self.mode, self._id = handle, handle.mode_of(manifest.format), manifest.id
        self._stored_side = round(manifest.height or 0) if manifest.payload == "pixels" else None
        self.index, shards = _located(handle.manifest, manifest, handle.split)
        assert len(self.index) == self.samples
        self.storage = _storage(handle, manifest, self.index, shards)
        self.reader: IndexedReader | DatabaseReader | MemoryReader | StreamReader = self.storage
        if self.mode == "memory":
            self.reader = MemoryReader(self.storage, self.index.bytes, handle.memory)
            self.handle = dataclasses.replace(handle, memory=self.reader.place)
        elif self.mode == "stream":
            assert isinstance(self.storage, IndexedReader)
            self.reader = self.feed = StreamReader(self.storage)
            self.stream = storage_order(self.index.shard, self.index.start, self.samples, handle.shuffle_buffer)

    @property
    def files(self) -> list[Path]:
        return [] if self.mode == "synthetic" else self.storage.files

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        return iter(()) if self.mode == "synthetic" else self.storage.ranges(indices)

    def slot_bytes(self, samples: int, size: int | None) -> int:
        return samples * (size or DEFAULT_SIDE) ** 2 * 3

    def arrays(self, indices: Indices, epoch: int, transform: Transform, out: Memory = None) -> ArrayBatch:
        side, size = transform.size or DEFAULT_SIDE, self.slot_bytes(len(indices), transform.size)
        memory = np.empty(size, np.uint8) if out is None else out[:size]
        shown = memory.reshape(len(indices), side, side, 3)
        if self.mode == "synthetic":
            for sample, image in zip(indices.tolist(), shown, strict=True):
                _paint(sample, image)
        else:
            self._show(indices, epoch, transform, shown)
        return shown.transpose(0, 3, 1, 2), self.index.labels[indices]

    def _show(self, indices: Indices, epoch: int, transform: Transform, out: NDArray[np.uint8]) -> None:
        """Write images into `out`, uint8 [B, side, side, 3]; UserError with file, place and sample where one is damaged."""
        draws, places, samples = None, None, indices.tolist()
        if transform.augment != "none":
            draws = counter_rng.uniforms(images.DRAWS, counter_rng.AUGMENT, transform.seed, epoch, indices)
        with contextlib.suppress(OSError):  # its sample is found, and named, when it is read
            places = self.reader.places(indices) if isinstance(self.reader, IndexedReader) else None
        if places is None and isinstance(self.reader, IndexedReader) and len(out) > 1:
            for row in range(len(out)):  # one by one, as they come: a worker holds one of them in memory
                self._show(indices[row : row + 1], epoch, transform, out[row : row + 1])
            return
        try:
            images.show_batch(
                places,
                lambda row: self.reader.read(samples[row], epoch),
                draws,
                transform.augment == "crop_flip",
                out,
                stored_side=self._stored_side,
                changed=lambda row, data: self._is_changed(samples[row], data),
            )
        except images.Damaged as error:
            path, place = self.storage.where(samples[error.row])
            what = f"sample {samples[error.row]}{f' ({place})' if place else ''} cannot be read: {error}"
            raise UserError(what, path, replace_remedy(self._id)) from None

    def _is_changed(self, sample: int, data: Any) -> bool:
        return bool(len(self.index.checks)) and int(self.index.checks[sample]) != zlib.crc32(data)


def begins_with_jpeg(manifest_path: Path, manifest: Manifest) -> bool:
    """Whether the first training image is a JPEG, which the kernel may decode. OSError or UserError where it is not here."""
    storage = ImageDataset(DatasetHandle(manifest_path, "train"), manifest).storage
    return bytes(storage.read(0, 0)[:2]) == images.KINDS["JPEG"]


def _storage(
    handle: DatasetHandle, manifest: Manifest, index: Index, shards: list[str] | None
) -> IndexedReader | DatabaseReader:
    """Open the storage of one split; UserError where the data cannot be read so."""
    bulk = bulk_folder(handle.manifest, manifest).absolute()
    if manifest.format != "database":
        origin = handle.origin or str(bulk)
        return IndexedReader(store_at(origin, kept_open=manifest.format != "files"), handle.throttle, index, shards)
    if handle.origin is not None:
        remedy = "leave it out, or store the data in shards"
        raise UserError("a database is read only where it lies", "loader.origin", remedy)
    return DatabaseReader(bulk / f"{handle.split}.lmdb", handle.throttle, manifest.id)


def _located(manifest_path: Path, manifest: Manifest, split: Split) -> tuple[Index, list[str] | None]:
    """The index of one split, mapped, and all its shards; None where each sample is a file or a record.

    A million samples cost address space, not memory. UserError where the index is missing or damaged.
    """
    bulk = bulk_folder(manifest_path, manifest)
    if manifest.format == "raw":
        return _located_in_array(bulk, split), [f"{split}.npy"]
    index = mapped_index(index_file(manifest_path, manifest), split)
    return index, shard_names(manifest, split) if manifest.format == "shards" else None


def _located_in_array(bulk: Path, split: Split) -> Index:
    """Images of one size in one .npy file."""
    pixels, labels = mapped_array(bulk / f"{split}.npy"), mapped_array(bulk / f"{split}_labels.npy")
    count, side = pixels.shape[:2]
    size = 3 * side**2
    return Index.of(
        None,
        np.array(labels),
        np.broadcast_to(np.int64(size), (count,)),
        np.zeros(0, np.uint32),
        shard=np.broadcast_to(np.int32(0), (count,)),
        start=pixels.offset + size * np.arange(count),
    )


_POOL = counter_rng.hashed(counter_rng.POOL, np.arange(1 << 16)).view(np.uint8)


def _paint(sample: int, out: NDArray[np.uint8]) -> None:
    """Fill `out` with pixels at the cost of a copy: what remains of loading when nothing is read or decoded."""
    flat, half = out.reshape(-1), len(_POOL) // 2
    begin = int(counter_rng.hashed(counter_rng.VALUES, sample)[0] % np.uint64(half))
    for at in range(0, len(flat), half):
        part = flat[at : at + half]
        part[:] = _POOL[begin : begin + len(part)]
