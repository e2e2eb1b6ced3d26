"""Batches of pictures, straight into memory that is there: read, decode, crop, resize, flip. Imports no torch.

Worker processes use this module alone; with the kernel they never import torch, which would take 270 MiB in each.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import draw
from scalestudy.data.decode import images, kernel
from scalestudy.data.index import Index, mapped_index
from scalestudy.data.load.readers import REMEDY, How, Indices, Reader, mode_of
from scalestudy.data.load.readers.database import DatabaseReader
from scalestudy.data.load.readers.indexed import IndexedReader
from scalestudy.data.load.readers.memory import MemoryReader
from scalestudy.data.load.readers.stream import StreamReader
from scalestudy.data.load.sampler import Stored, stored
from scalestudy.data.manifest import Manifest, Split, bulk_folder, database_path, index_file, shard_path
from scalestudy.data.stores import FolderStore, HttpStore, Store, ThrottledStore
from scalestudy.emulation.storage import Throttle
from scalestudy.errors import UserError

PICTURE_FORMATS = ("files", "raw", "shards", "database")
NOTHING, UNWATCHED = -1, -2
"""Samples in a worker's progress while it is at none, and while it does what may take any time."""


@dataclass(frozen=True)
class Recipe:
    """All that is needed to open a dataset as another process did; plain data."""

    manifest: Path
    split: Split
    how: How


def no_progress() -> NDArray[np.int64]:
    """A worker's progress: the sample it is at (or NOTHING), and since when, in nanoseconds of the monotonic clock."""
    return np.array([NOTHING, 0], np.int64)


class Pictures:
    """One split's pictures. All methods may be called by several threads at once."""

    def __init__(self, recipe: Recipe, manifest: Manifest) -> None:
        how = recipe.how
        self.mode = mode_of(how, manifest.format)
        self.pixels = manifest.format == "raw" or manifest.payload == "pixels"
        """Whether what is stored is pixels, uint8 [height, width, 3], not JPEG or PNG."""
        places = _places(recipe.manifest, manifest, recipe.split)
        self.labels, self.sizes, self._checks = places.labels, places.sizes, places.checks
        self._height, self._width = places.height, places.width
        self.reader = _opened(recipe, manifest, self.mode, places)
        self.stream: Stored | None = None
        """How samples lie, where they are read in sequence."""
        if self.mode == "stream":
            self.stream = stored(places.shard, places.start, len(self.labels), how.shuffle_buffer)

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
        """Write the pictures into `out`, uint8 [B, side, side, 3].

        `augment` (`none`, `flip`, `crop_flip`) is drawn from seed, epoch and sample alone. `progress` is kept up to
        date for those who watch. Raises UserError naming file, place and sample where one cannot be read.
        """
        draws = draw.uniforms(images.DRAWS, draw.AUGMENT, seed, epoch, indices).tolist() if augment != "none" else None
        progress = no_progress() if progress is None else progress
        for row, sample in enumerate(indices.tolist()):
            numbers = draws[row] if draws is not None else None
            flip = numbers is not None and numbers[2 * images.ATTEMPTS] < 0.5
            progress[1] = time.monotonic_ns()
            progress[0] = sample
            if self.mode == "synthetic":
                _paint(sample, out[row])
                continue
            try:
                data = self.reader.read(sample, epoch)
                self._show(sample, data, numbers if augment == "crop_flip" else None, flip, out[row])
            except images.UNREADABLE as error:
                raise self.unreadable(sample, error) from None
        progress[0] = NOTHING

    def unreadable(self, sample: int, error: object) -> UserError:
        """An error about one sample, with its file and its place in it."""
        path, place = self.reader.where(sample)
        return UserError(f"sample {sample}{f' ({place})' if place else ''} cannot be read: {error}", path, REMEDY)

    def _show(self, sample: int, data: Any, draws: list[float] | None, flip: bool, out: NDArray[np.uint8]) -> None:
        if self.pixels:
            height, width = int(self._height[sample]), int(self._width[sample])
            if len(data) != height * width * 3:
                raise ValueError(f"{len(data):,} bytes are no {height} x {width} pixels")
            images.show_pixels(data, height, width, view_of(height, width, draws, flip), out)
            return
        fast = kernel.loaded()
        height, width = (fast.header(data) if fast else None) or images.header(data)
        view = view_of(height, width, draws, flip)
        shrink = images.shrink_for(view, out.shape[0])
        if fast is not None:
            decoded = (-(-height // shrink), -(-width // shrink))
            if fast.show_jpeg(data, shrink, images.scaled_view(view, (height, width), decoded), out):
                return
        images.show_coded(data, height, width, view, shrink, out, lambda: self._changed(sample, data))

    def _changed(self, sample: int, data: Any) -> bool:
        """Whether the bytes are known not to be those that were stored."""
        return len(self._checks) > 0 and zlib.crc32(data) != int(self._checks[sample])

    def close(self) -> None:
        """Let go of files, connections and threads."""
        self.reader.close()


def view_of(height: int, width: int, draws: list[float] | None, flip: bool) -> images.View:
    """The centre, or a random view from `draws`."""
    return images.centre_view(height, width, flip) if draws is None else images.random_view(height, width, draws)


def _paint(sample: int, out: NDArray[np.uint8]) -> None:
    """Pixels that cost a copy: what is left of loading when nothing is read or decoded."""
    flat = out.reshape(-1)
    pool = _POOL
    begin = int(draw.hashed(draw.VALUES, sample)[0] % np.uint64(len(pool) // 2))
    for at in range(0, len(flat), len(pool) // 2):
        part = flat[at : at + len(pool) // 2]
        part[:] = pool[begin : begin + len(part)]


_POOL = draw.hashed(draw.POOL, np.arange(1 << 16)).view(np.uint8)


# Where samples lie


class _Places:
    """What the reading needs of an index, mapped: a million samples cost address space, not memory."""

    def __init__(self, index: Index, name: Callable[[int], str], names: list[str] | None) -> None:
        self.labels, self.sizes, self.checks = index.labels, index.bytes, index.checks
        self.shard, self.start, self.height, self.width = index.shard, index.start, index.height, index.width
        self.name, self.names = name, names


def _places(manifest_path: Path | str, manifest: Manifest, split: Split) -> _Places:
    if manifest.format == "raw":
        return _raw_places(bulk_folder(manifest_path, manifest), split)
    index = mapped_index(index_file(manifest_path, manifest), split)
    if len(index) != manifest.split(split).samples:
        what = f"the index has {len(index):,} samples, the manifest {manifest.split(split).samples:,}"
        raise UserError(what, str(manifest_path), "prepare the data again")
    if manifest.format != "shards":
        return _Places(index, index.path, None)
    bulk = bulk_folder(manifest_path, manifest)
    count = int(index.shard.max()) + 1 if len(index) else 0
    names = [str(shard_path(manifest_path, manifest, split, k).relative_to(bulk)) for k in range(count)]
    return _Places(index, lambda sample: names[index.shard[sample]], names)


def _raw_places(bulk: Path, split: Split) -> _Places:
    """Pictures of one size in one .npy file."""
    try:
        pixels = np.load(bulk / f"{split}.npy", mmap_mode="r")
        labels = np.array(np.load(bulk / f"{split}_labels.npy"))
    except (OSError, ValueError) as error:
        remedy = "prepare it again"
        raise UserError(f"prepared data cannot be read: {error}", str(bulk / f"{split}.npy"), remedy) from None
    assert isinstance(pixels, np.memmap)
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
    return _Places(index, lambda _sample: name, [name])


def _opened(recipe: Recipe, manifest: Manifest, mode: str, places: _Places) -> Reader:
    how = recipe.how
    throttle = Throttle(how.mib_per_s, how.latency_ms, how.place) if how.limited and how.place else None
    reader: Reader
    if manifest.format == "database":
        if how.origin is not None:
            raise UserError("a database is read where it lies", "loader.origin", "take shards")
        reader = DatabaseReader(database_path(recipe.manifest, manifest, recipe.split).absolute(), throttle)
    else:
        store = _store(how.origin or str(bulk_folder(recipe.manifest, manifest).absolute()), manifest.format != "files")
        if throttle is not None:
            store = ThrottledStore(store, throttle)
        starts = places.start if len(places.start) else None
        reader = IndexedReader(store, places.name, places.sizes, starts, places.names)
    if mode == "memory":
        return MemoryReader(reader, places.sizes, how.memory)
    if mode == "stream":
        assert isinstance(reader, IndexedReader)
        return StreamReader(reader, how.patience_s)
    return reader


def _store(origin: str, large_files: bool) -> Store:
    if origin.startswith(("http://", "https://")):
        return HttpStore(origin)
    return FolderStore(origin, kept_open=large_files)
