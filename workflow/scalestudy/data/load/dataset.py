"""Prepared data as batches of uint8 images, the same pixels for any number of workers and ranks."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data.index import DAMAGED, check_labels
from scalestudy.data.load.image_reader import PICTURE_FORMATS, ImageReader
from scalestudy.data.load.readers import DatasetHandle, ReadOptions
from scalestudy.data.load.readers.memory import MemoryReader
from scalestudy.data.load.sampler import StorageOrder
from scalestudy.data.manifest import Manifest, Split, Task, bulk_folder, read_manifest
from scalestudy.data.modes import MODES
from scalestudy.data.sources.samples import Indices, SplitOfData, TensorDataset
from scalestudy.errors import UserError
from scalestudy.spec import run

DEFAULT_SIDE = 224
"""Height and width of a training image made from JPEG or raw images."""


class Dataset(Protocol):
    """One split of prepared data. All methods may be called by several threads at once."""

    samples: int
    channels: int
    classes: int
    task: Task
    image_size: tuple[int, int]
    """Height and width of a training image where the loader names no size."""
    stored_bytes: int
    """Bytes of this split as stored."""

    @property
    def files(self) -> list[Path]:
        """The files whose pages in the page cache matter."""
        ...

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int, train: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x uint8 [B, C, H, W] (own datasets: their dtype), y int64 [B] or, multilabel, float32 [B, classes].

        `augment` (`none`, `flip`, `crop_flip`) applies when `train`, and is drawn from seed, epoch and sample alone.
        Raises UserError where a sample is damaged.
        """
        ...

    def bytes_of(self, indices: Indices) -> int:
        """Stored bytes that are read for these samples."""
        ...

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        """Path, offset and bytes of what is read of local files for these samples. Empty for samples held in memory."""
        ...

    handle: DatasetHandle
    """How it was opened, so that a worker process can open it too."""
    stream: StorageOrder | None
    """The storage order of samples, where the input mode reads them in sequence."""


def open_dataset(
    manifest_path: Path | str, split: Split, loader: run.Loader | None = None, place: Path | None = None
) -> Dataset:
    """Open one split of the data that a manifest describes; UserError where it is skipped, missing or damaged.

    `loader` sets how it is read; None: in the best way for its format. Processes that name the same `place`, a file
    on this node, share the rate of an emulated storage.
    """
    spec = loader or run.Loader()
    storage = spec.storage
    how = ReadOptions(
        mode=spec.mode,
        origin=spec.origin,
        shuffle_buffer=spec.shuffle_buffer,
        mib_per_s=storage.mib_per_s if storage else None,
        latency_ms=storage.latency_ms if storage else 0.0,
    )
    own_place = None
    if how.limited:
        own_place = None if place else os.memfd_create("scalestudy-storage")
        how = dataclasses.replace(how, place=str(place) if place else f"/proc/{os.getpid()}/fd/{own_place}")
    data = opened(DatasetHandle(Path(manifest_path).absolute(), split, how))
    if own_place is not None:
        weakref.finalize(data, os.close, own_place)
    return data


def opened(handle: DatasetHandle) -> Dataset:
    """Open a dataset as another process did."""
    manifest = read_manifest(handle.manifest)
    if manifest.status == "skipped":
        raise UserError(f"the data was skipped: {manifest.reason}", str(handle.manifest))
    data: Any
    if manifest.format in PICTURE_FORMATS:
        data = PictureDataset(handle, manifest)
        reader = data.pictures.reader
        if isinstance(reader, MemoryReader):
            handle = dataclasses.replace(handle, how=dataclasses.replace(handle.how, memory=reader.place))
    else:
        data = _tensors(handle, manifest)
    data.handle = handle
    return cast(Dataset, data)


def _tensors(handle: DatasetHandle, manifest: Manifest) -> Any:
    """Arrays, or samples made while they are read."""
    how = handle.how
    if how.mode not in (None, *MODES["tensors"]) or how.limited or how.origin is not None:
        what = "samples that are tensors, or are made while they are read, have no storage to choose"
        raise UserError(what, "loader", "leave `mode`, `origin` and `storage` out")
    if manifest.bulk:
        data: Any = ArrayDataset(manifest, handle.split, handle.manifest)
        check_labels(data.labels, manifest.classes, handle.manifest)
    else:
        from scalestudy.data.sources import source_module

        data = source_module(manifest.spec).open_split(manifest, handle.split)
    if how.mode == "memory" and isinstance(data, ArrayDataset):
        data.keep()
    return SyntheticBatches(data) if how.mode == "synthetic" else data


def mapped(path: Path) -> NDArray[Any]:
    """A .npy file, mapped; UserError where it is missing or damaged."""
    try:
        # As a plain array: numpy's `memmap` costs more at each indexing.
        found = np.asarray(np.load(path, mmap_mode="r"))
        if found.dtype.hasobject or not found.ndim:
            raise ValueError("it is not an array of numbers")
        return found
    except DAMAGED as error:
        raise UserError(f"prepared data cannot be read: {error}", str(path), "prepare it again") from None


class ArrayDataset(TensorDataset):
    """Arrays in .npy files, mapped, so that ranks of a node share their pages."""

    def __init__(self, manifest: Manifest, split: Split, manifest_path: Path) -> None:
        super().__init__(manifest, split)
        folder = bulk_folder(manifest_path, manifest)
        self._file = folder / f"{split}.npy"
        self._x, self.labels = mapped(self._file), mapped(folder / f"{split}_labels.npy")
        if not len(self._x) == len(self.labels) == self.samples or self._x.dtype != np.uint8:
            what = f"{self._x.dtype} {self._x.shape} with {len(self.labels):,} labels are not {self.samples:,} samples"
            raise UserError(what, str(self._file), "prepare it again")

    @property
    def files(self) -> list[Path]:
        return [self._file]

    def gather(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self._x[indices]), torch.from_numpy(self.labels[indices])

    def keep(self) -> None:
        """Read everything now, and keep it in the memory of this process."""
        self._x = np.array(self._x)


class SyntheticBatches(SplitOfData):
    """Another dataset's first batch, again and again: the cost that remains when nothing is read or decoded."""

    def __init__(self, data: Any) -> None:
        self.__dict__.update({name: getattr(data, name) for name in ("samples", "channels", "classes", "task")})
        self.image_size, self.stored_bytes = data.image_size, data.stored_bytes
        self._data = data
        self._made: dict[tuple[int, int | None], tuple[torch.Tensor, torch.Tensor]] = {}

    def bytes_of(self, indices: Indices) -> int:
        return 0

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int, train: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key = (len(indices), size)
        if key not in self._made:
            first = np.arange(len(indices)) % self.samples
            self._made[key] = self._data.batch(first, size=size, augment="none", seed=seed, epoch=0, train=False)
        return self._made[key]


class PictureDataset(SplitOfData):
    """Images [height, width, 3], coded or as pixels; a batch holds a region of each, resized to a square."""

    def __init__(self, handle: DatasetHandle, manifest: Manifest) -> None:
        super().__init__(manifest, handle.split)
        self.image_size = (DEFAULT_SIDE, DEFAULT_SIDE)
        self.pictures = ImageReader(handle, manifest)
        self.mode, self.stream = self.pictures.mode, self.pictures.stream
        assert len(self.pictures.labels) == self.samples

    @property
    def files(self) -> list[Path]:
        return [] if self.mode == "synthetic" else self.pictures.reader.files

    def bytes_of(self, indices: Indices) -> int:
        return 0 if self.mode == "synthetic" else int(self.pictures.sizes[indices].sum())

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        return iter(()) if self.mode == "synthetic" else self.pictures.reader.ranges(indices)

    def side(self, size: int | None) -> int:
        """Height and width of an image as the loader shows it."""
        return size or DEFAULT_SIDE

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int, train: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = np.empty((len(indices), self.side(size), self.side(size), 3), np.uint8)
        self.pictures.make(indices, out, augment=augment if train else "none", seed=seed, epoch=epoch)
        return torch.from_numpy(out).permute(0, 3, 1, 2), self.labels_of(indices)

    def labels_of(self, indices: Indices) -> torch.Tensor:
        """y of these samples."""
        return torch.from_numpy(self.pictures.labels[indices])
