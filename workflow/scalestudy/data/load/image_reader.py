"""Batches of images, straight into given memory: read, decode, crop, resize, flip. Imports no torch.

Worker processes use this module alone; with the kernel they never import torch, which would take 270 MiB in each.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.data.decode import images, kernel
from scalestudy.data.index import Index, mapped_array, mapped_index
from scalestudy.data.load.readers import DatabaseReader, DatasetHandle, IndexedReader, Indices, MemoryReader
from scalestudy.data.load.sampler import StorageOrder, storage_order
from scalestudy.data.load.stream import StreamReader
from scalestudy.data.manifest import Manifest, Split, bulk_folder, index_file, replace_remedy, shard_names
from scalestudy.data.stores import store_at
from scalestudy.errors import UserError

NO_SAMPLE, UNWATCHED = -1, -2
"""In place of a sample in a worker's progress: it works on none, or on something that may take any time."""


def no_progress() -> NDArray[np.int64]:
    """A worker's progress: its current sample (or NO_SAMPLE), and since when, in nanoseconds of the monotonic clock."""
    return np.array([NO_SAMPLE, 0], np.int64)


class ImageReader:
    """One split's images. All methods may be called by several threads at once."""

    def __init__(self, handle: DatasetHandle, manifest: Manifest) -> None:
        self.mode, self.dataset = handle.mode_of(manifest.format), manifest.id
        self._side = round(manifest.height or 0) if manifest.payload == "pixels" else None
        """Height and width of images that are stored as pixels."""
        self.index, shards = _located(handle.manifest, manifest, handle.split)
        self.storage = _storage(handle, manifest, self.index, shards)
        self.reader: IndexedReader | DatabaseReader | MemoryReader | StreamReader = self.storage
        self.stream: StorageOrder | None = None
        """The storage order of samples, where they are read in sequence."""
        if self.mode == "memory":
            self.reader = MemoryReader(self.storage, self.index.bytes, handle.memory)
        elif self.mode == "stream":
            assert isinstance(self.storage, IndexedReader)
            self.reader = StreamReader(self.storage, handle.patience_s)
            self.stream = storage_order(self.index.shard, self.index.start, len(self.index), handle.shuffle_buffer)

    def make(
        self,
        indices: Indices,
        out: NDArray[np.uint8],
        *,
        augment: str,
        seed: int,
        epoch: int,
        progress: NDArray[np.int64] | None = None,
    ) -> None:
        """Write the images into `out`, uint8 [B, side, side, 3].

        `augment` (`none`, `flip`, `crop_flip`) is drawn from seed, epoch and sample alone. `progress` is updated with
        each sample. Raises UserError naming file, place and sample where one cannot be read.
        """
        if self.mode == "synthetic":
            for sample, image in zip(indices.tolist(), out, strict=True):
                _paint(sample, image)
            return
        if isinstance(self.reader, IndexedReader) and not self.reader.is_local and len(indices) > 1:
            for row in range(len(indices)):  # one by one, as they come: a worker holds one of them in memory
                one = slice(row, row + 1)
                self.make(indices[one], out[one], augment=augment, seed=seed, epoch=epoch, progress=progress)
            return
        draws = None
        if augment != "none":
            draws = counter_rng.uniforms(images.DRAWS, counter_rng.AUGMENT, seed, epoch, indices)
        crop, progress = augment == "crop_flip", no_progress() if progress is None else progress
        rows: Iterable[int] = range(len(indices))
        held: list[Any] = []
        if (fast := kernel.loaded()) is not None:
            pictures, names, held = self._places(indices, epoch, progress)
            stored = (self._side or 0, self._side or 0)
            rows = fast.show(
                pictures, names, draws, crop, out, most_pixels=images.MOST_PIXELS, stored=stored, progress=progress
            )
        with self._naming(progress):
            for row in rows:
                sample = self._begin(int(indices[row]), progress)
                data = held[row] if held else self.reader.read(sample, epoch)
                self._show(sample, data, None if draws is None else draws[row], crop, out[row])
        progress[0] = NO_SAMPLE

    @contextlib.contextmanager
    def _naming(self, progress: NDArray[np.int64]) -> Iterator[None]:
        """Turn errors of the current image into one that names its file and place."""
        try:
            yield
        except images.UNREADABLE as error:
            raise self.unreadable(int(progress[0]), images.reason(error)) from None

    def _begin(self, sample: int, progress: NDArray[np.int64]) -> int:
        progress[1] = time.monotonic_ns()
        progress[0] = sample
        return sample

    def _places(
        self, indices: Indices, epoch: int, progress: NDArray[np.int64]
    ) -> tuple[NDArray[np.void], bytes, list[Any]]:
        """Where the kernel finds these images: in local files, with their names, or in memory, into which they are read."""
        with contextlib.suppress(OSError):  # its sample is found, and named, when it is read
            if isinstance(self.reader, IndexedReader) and self.reader.is_local:
                return *self.reader.places(indices), []
        with self._naming(progress):
            held = [self.reader.read(self._begin(sample, progress), epoch) for sample in indices.tolist()]
        pictures = kernel.in_memory(*held)
        pictures["sample"] = indices
        return pictures, b"", held

    def unreadable(self, sample: int, error: object) -> UserError:
        """An error about one sample, with its file and its place in it."""
        path, place = self.storage.where(sample)
        what = f"sample {sample}{f' ({place})' if place else ''} cannot be read: {error}"
        return UserError(what, path, replace_remedy(self.dataset))

    def _show(self, sample: int, data: Any, draws: images.Draws, crop: bool, out: NDArray[np.uint8]) -> None:
        """Show an image without the kernel."""
        if (side := self._side) is not None:
            pixels = np.frombuffer(data, np.uint8).reshape(side, side, 3)
            images.show(pixels, images.view_of(side, side, draws, crop), out)
            return
        stored = int(self.index.checks[sample]) if len(self.index.checks) else None
        images.show_coded(data, draws, crop, out, lambda: stored not in (None, zlib.crc32(data)))


def begins_with_jpeg(manifest_path: Path, manifest: Manifest) -> bool:
    """Whether the first training image is a JPEG, which the kernel may decode. OSError or UserError where it is not here."""
    storage = ImageReader(DatasetHandle(manifest_path, "train"), manifest).storage
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
