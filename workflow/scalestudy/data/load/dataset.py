"""Prepared data as batches of uint8 images, the same pixels for any number of workers and ranks.

Imports no torch, and nothing of a run's spec: worker processes open their data here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scalestudy.data.index import mapped_array
from scalestudy.data.manifest import Manifest, Split, bulk_folder, read_manifest
from scalestudy.data.sources import source_module
from scalestudy.data.sources.samples import ArrayBatch, DatasetHandle, Indices, Memory, TensorDataset, Transform
from scalestudy.data.sources.samples import Dataset as Dataset  # noqa: PLC0414 (named by those who open it)

if TYPE_CHECKING:
    from scalestudy.spec import run


def open_dataset(
    manifest_path: Path | str, split: Split, loader: run.Loader | None = None, place: Path | None = None
) -> Dataset:
    """Open one split of the data that a manifest describes; UserError where it is missing or damaged.

    `loader` sets how it is read; None: in the best way for its format. Processes that name the same `place`, a file
    on this node, share the rate of an emulated storage.
    """
    manifest_file, throttle = Path(manifest_path).absolute(), None
    if loader is None:
        return opened(DatasetHandle(manifest_file, split))
    if (storage := loader.storage) is not None:
        from scalestudy.emulation.storage import Throttle

        throttle = Throttle(storage.mib_per_s, storage.latency_ms, str(place) if place else None)
    return opened(DatasetHandle(manifest_file, split, loader.mode, loader.origin, loader.shuffle_buffer, throttle))


def opened(handle: DatasetHandle) -> Dataset:
    """Open a dataset as another process did."""
    manifest = read_manifest(handle.manifest)
    if manifest.format != "tensors":
        from scalestudy.data.load.images import ImageDataset

        return ImageDataset(handle, manifest)
    data: Dataset
    if manifest.bulk:
        data = ArrayDataset(manifest, handle.split, bulk_folder(handle.manifest, manifest), handle.mode == "memory")
    else:
        data = source_module(manifest.spec).open_split(manifest, handle.split)
    data.handle = handle
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

    def gather(self, indices: Indices) -> ArrayBatch:
        return self._x[indices], self._labels[indices]


class SyntheticBatches(Dataset):
    """Another dataset's first batch, again and again: the cost that remains when nothing is read or decoded."""

    def __init__(self, data: Dataset) -> None:
        self.__dict__.update(vars(data))
        self._data = data
        self._made: dict[Any, ArrayBatch] = {}

    def arrays(self, indices: Indices, epoch: int, transform: Transform, out: Memory = None) -> ArrayBatch:
        key = (len(indices), transform.size)
        if key not in self._made:
            first = np.arange(len(indices)) % self.samples
            self._made[key] = self._data.arrays(first, 0, transform._replace(augment="none"))
        return self._made[key]
