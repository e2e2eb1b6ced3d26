"""Prepared data as batches of uint8 images, the same pixels for any number of workers and ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from scalestudy.data.index import mapped_array
from scalestudy.data.load.image_reader import ImageReader
from scalestudy.data.load.readers import DatasetHandle, MemoryReader
from scalestudy.data.manifest import Manifest, Split, bulk_folder, read_manifest
from scalestudy.data.sources import source_module
from scalestudy.data.sources.samples import Dataset as Dataset  # noqa: PLC0414 (named by those who open it)
from scalestudy.data.sources.samples import Indices, TensorDataset
from scalestudy.emulation.storage import Throttle
from scalestudy.spec import run

DEFAULT_SIDE = 224
"""Height and width of a training image made from JPEG or raw images."""


def open_dataset(
    manifest_path: Path | str, split: Split, loader: run.Loader | None = None, place: Path | None = None
) -> Dataset:
    """Open one split of the data that a manifest describes; UserError where it is missing or damaged.

    `loader` sets how it is read; None: in the best way for its format. Processes that name the same `place`, a file
    on this node, share the rate of an emulated storage.
    """
    spec, throttle = loader or run.Loader(), None
    if (storage := spec.storage) is not None:
        throttle = Throttle(storage.mib_per_s, storage.latency_ms, str(place) if place else None)
    manifest_file = Path(manifest_path).absolute()
    return opened(DatasetHandle(manifest_file, split, spec.mode, spec.origin, spec.shuffle_buffer, throttle))


def opened(handle: DatasetHandle) -> Dataset:
    """Open a dataset as another process did."""
    manifest = read_manifest(handle.manifest)
    data: Dataset
    if manifest.format == "tensors":
        data = _tensors(handle, manifest)
    else:
        data = PictureDataset(handle, manifest)
        if isinstance(memory := data.pictures.reader, MemoryReader):
            handle = dataclasses.replace(handle, memory=memory.place)
    data.handle = handle
    return data


def _tensors(handle: DatasetHandle, manifest: Manifest) -> Dataset:
    """Arrays, or samples made while they are read."""
    data: Dataset
    if manifest.bulk:
        data = ArrayDataset(manifest, handle.split, bulk_folder(handle.manifest, manifest), handle.mode == "memory")
    else:
        data = source_module(manifest.spec).open_split(manifest, handle.split)
    return SyntheticBatches(data) if handle.mode == "synthetic" else data


class ArrayDataset(TensorDataset):
    """Arrays in .npy files, mapped, so that ranks of a node share their pages; or read now, and kept in memory."""

    def __init__(self, manifest: Manifest, split: Split, folder: Path, in_memory: bool) -> None:
        super().__init__(manifest, split)
        self._file = folder / f"{split}.npy"
        # As plain arrays: `memmap` costs more at each indexing.
        self._x = np.array(mapped_array(self._file)) if in_memory else np.asarray(mapped_array(self._file))
        self._labels = np.asarray(mapped_array(folder / f"{split}_labels.npy"))

    @property
    def files(self) -> list[Path]:
        return [self._file]

    def gather(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self._x[indices]), torch.from_numpy(self._labels[indices])


class SyntheticBatches(Dataset):
    """Another dataset's first batch, again and again: the cost that remains when nothing is read or decoded."""

    def __init__(self, data: Dataset) -> None:
        self.__dict__.update(vars(data))
        self._data = data
        self._made: dict[tuple[int, int | None], tuple[torch.Tensor, torch.Tensor]] = {}

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key = (len(indices), size)
        if key not in self._made:
            first = np.arange(len(indices)) % self.samples
            self._made[key] = self._data.batch(first, size=size, augment="none", seed=seed, epoch=0)
        return self._made[key]


class PictureDataset(Dataset):
    """Images [height, width, 3], coded or as pixels; a batch holds a region of each, resized to a square."""

    def __init__(self, handle: DatasetHandle, manifest: Manifest) -> None:
        super().__init__(manifest, handle.split)
        self.image_size = (DEFAULT_SIDE, DEFAULT_SIDE)
        self.pictures = ImageReader(handle, manifest)
        self.stream, self._is_read = self.pictures.stream, self.pictures.mode != "synthetic"
        assert len(self.pictures.index) == self.samples

    @property
    def files(self) -> list[Path]:
        return self.pictures.storage.files if self._is_read else []

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        return self.pictures.storage.ranges(indices) if self._is_read else iter(())

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        side = size or DEFAULT_SIDE
        out = np.empty((len(indices), side, side, 3), np.uint8)
        self.pictures.make(indices, out, augment=augment, seed=seed, epoch=epoch)
        return torch.from_numpy(out).permute(0, 3, 1, 2), self.labels_of(indices)

    def labels_of(self, indices: Indices) -> torch.Tensor:
        """y of these samples, which the index holds."""
        return torch.from_numpy(self.pictures.index.labels[indices])
