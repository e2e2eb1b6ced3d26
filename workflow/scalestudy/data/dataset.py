"""Prepared data as batches of uint8 images, the same pixels for any number of workers and ranks."""

from __future__ import annotations

import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data import draw, images
from scalestudy.data.index import Index, read_index
from scalestudy.data.manifest import Manifest, Split, Task, bulk_folder, index_file, read_manifest
from scalestudy.errors import UserError

Indices = NDArray[np.int64]
DEFAULT_SIDE = 224
"""Height and width of a training image made from JPEG or raw pictures."""


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
        """Stored bytes that reading these samples takes."""
        ...

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        """What reading these samples reads: path, offset, bytes. Empty for samples held in memory."""
        ...


def open_dataset(manifest_path: Path | str, split: Split) -> Dataset:
    """Open one split of the data that a manifest describes; UserError where it is skipped, missing or damaged."""
    manifest = read_manifest(manifest_path)
    if manifest.status == "skipped":
        raise UserError(f"the data is not there: {manifest.reason}", str(manifest_path))
    bulk = bulk_folder(manifest_path, manifest)
    if manifest.format == "files":
        return FileDataset(manifest, split, bulk, read_index(index_file(manifest_path, manifest), split))
    if manifest.format == "raw":
        return RawDataset(manifest, split, bulk)
    if manifest.bulk:
        return ArrayDataset(manifest, split, bulk)
    from scalestudy.data.sources import source_module

    return source_module(manifest.spec).open_split(manifest, split)


def mapped(path: Path) -> NDArray[Any]:
    """A .npy file, mapped; UserError where it is missing or damaged."""
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise UserError(f"prepared data cannot be read: {error}", str(path), "prepare it again") from None


class _Split:
    """What all forms of one split have in common."""

    def __init__(self, manifest: Manifest, split: Split) -> None:
        info = manifest.split(split)
        self.samples, self.stored_bytes = info.samples, info.bytes
        self.channels, self.classes, self.task = manifest.channels, manifest.classes, manifest.task
        self.image_size = (round(manifest.height or 1), round(manifest.width or 1))

    @property
    def files(self) -> list[Path]:
        return []

    def bytes_of(self, indices: Indices) -> int:
        return self.stored_bytes // self.samples * len(indices)

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        return iter(())


class TensorDataset(_Split, ABC):
    """Samples that are tensors of one shape before any augmentation."""

    @abstractmethod
    def gather(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """x [B, ...] in memory of its own, and y."""

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int, train: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.gather(indices)
        augment = augment if train else "none"
        if x.ndim != 4:
            if size is None and augment == "none":
                return x, y
            shape = tuple(x.shape[1:])
            raise UserError(f"samples of shape {shape} are no images", "loader", "leave `size` and `augment` away")
        side = (size, size) if size is not None else (x.shape[2], x.shape[3])
        if augment == "none":
            return images.resized(x, side), y
        draws = draw.uniforms(images.DRAWS, draw.AUGMENT, seed, epoch, indices)
        if augment == "crop_flip":
            shown = x.new_empty((len(x), x.shape[1], *side))
            for row, numbers in enumerate(draws.tolist()):
                top, left, rows, columns, _ = images.random_view(x.shape[2], x.shape[3], numbers)
                shown[row] = images.resized(x[row : row + 1, :, top : top + rows, left : left + columns], side)[0]
            x = shown
        flipped = torch.from_numpy(draws[:, 2 * images.ATTEMPTS] < 0.5)
        x = torch.where(flipped[:, None, None, None], x.flip(-1), x)
        return images.resized(x, side), y


class ArrayDataset(TensorDataset):
    """Arrays in .npy files, mapped, so that ranks of a node share their pages."""

    def __init__(self, manifest: Manifest, split: Split, bulk: Path) -> None:
        super().__init__(manifest, split)
        self._file = bulk / f"{split}.npy"
        self._x, self._y = mapped(self._file), mapped(bulk / f"{split}_labels.npy")

    @property
    def files(self) -> list[Path]:
        return [self._file]

    def gather(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self._x[indices]), torch.from_numpy(self._y[indices])


class _PictureDataset(_Split, ABC):
    """Pictures [height, width, 3] of which each batch shows regions, resized to squares."""

    labels: NDArray[np.int64]

    def __init__(self, manifest: Manifest, split: Split) -> None:
        super().__init__(manifest, split)
        self.image_size = (DEFAULT_SIDE, DEFAULT_SIDE)
        self._kept = threading.local()

    @abstractmethod
    def _show(self, sample: int, draws: list[float] | None, flip: bool, out: torch.Tensor) -> None:
        """Write one picture into uint8 [3, side, side]: a random view from `draws`, or the centre."""

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int, train: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        side = size or DEFAULT_SIDE
        x = torch.empty((len(indices), 3, side, side), dtype=torch.uint8, memory_format=torch.channels_last)
        augment = augment if train else "none"
        draws = draw.uniforms(images.DRAWS, draw.AUGMENT, seed, epoch, indices).tolist() if augment != "none" else None
        for row, sample in enumerate(indices.tolist()):
            numbers = draws[row] if draws is not None else None
            flip = numbers is not None and numbers[2 * images.ATTEMPTS] < 0.5
            self._show(sample, numbers if augment == "crop_flip" else None, flip, x[row])
        return x, torch.from_numpy(self.labels[indices])

    def _buffer(self, size: int) -> memoryview:
        """A buffer of this thread: a fresh one for each picture costs its page faults each time."""
        if len(getattr(self._kept, "buffer", b"")) < size:
            self._kept.buffer = bytearray(size + size // 2)
        return memoryview(self._kept.buffer)[:size]


def _view(height: int, width: int, draws: list[float] | None, flip: bool) -> images.View:
    return images.centre_view(height, width, flip) if draws is None else images.random_view(height, width, draws)


class FileDataset(_PictureDataset):
    """JPEG and PNG files."""

    def __init__(self, manifest: Manifest, split: Split, bulk: Path, index: Index) -> None:
        super().__init__(manifest, split)
        self._bulk, self._index, self.labels = str(bulk.absolute()), index, index.labels
        assert len(index) == self.samples

    @property
    def files(self) -> list[Path]:
        return [Path(self._path(sample)) for sample in range(self.samples)]

    def _path(self, sample: int) -> str:
        return f"{self._bulk}/{self._index.path(sample)}"

    def bytes_of(self, indices: Indices) -> int:
        return int(self._index.bytes[indices].sum())

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        for sample, count in zip(indices.tolist(), self._index.bytes[indices].tolist(), strict=True):
            yield self._path(sample), 0, count

    def _show(self, sample: int, draws: list[float] | None, flip: bool, out: torch.Tensor) -> None:
        path = self._path(sample)
        try:
            data = self._read(path)
            height, width = images.header(data)
            view = _view(height, width, draws, flip)
            image = images.decode(data, images.shrink_for(view, out.shape[1]))
        except (OSError, ValueError, SyntaxError) as error:  # pillow raises SyntaxError for broken PNG
            remedy = "replace the file, or delete the manifest and prepare the data again"
            raise UserError(f"sample {sample} cannot be read: {error}", path, remedy) from None
        images.show(image, height, width, view, out)

    def _read(self, path: str) -> memoryview:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            data = self._buffer(os.fstat(descriptor).st_size)
            done = 0
            while done < len(data) and (count := os.readv(descriptor, [data[done:]])):
                done += count
            return data[:done]
        finally:
            os.close(descriptor)


class RawDataset(_PictureDataset):
    """Decoded pictures of 256x256 in one .npy file, each read by itself: cold, twice as fast as through a mapping."""

    def __init__(self, manifest: Manifest, split: Split, bulk: Path) -> None:
        super().__init__(manifest, split)
        self._path = str((bulk / f"{split}.npy").absolute())
        pixels = mapped(Path(self._path))
        assert isinstance(pixels, np.memmap) and len(pixels) == self.samples
        self._offset, self._shape, self._bytes = pixels.offset, pixels.shape[1:], pixels[0].nbytes
        self.labels = np.array(mapped(bulk / f"{split}_labels.npy"))
        self._descriptor = os.open(self._path, os.O_RDONLY)
        # The order is random: pages read ahead are wasted, and no one counts them against a limit.
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    @property
    def files(self) -> list[Path]:
        return [Path(self._path)]

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        for sample in indices.tolist():
            yield self._path, self._offset + sample * self._bytes, self._bytes

    def _show(self, sample: int, draws: list[float] | None, flip: bool, out: torch.Tensor) -> None:
        data = self._buffer(self._bytes)
        done = 0
        while done < len(data):
            count = os.preadv(self._descriptor, [data[done:]], self._offset + sample * self._bytes + done)
            if count == 0:
                raise UserError(f"ends within sample {sample}", self._path, "delete it and prepare the data again")
            done += count
        image = np.frombuffer(data, np.uint8).reshape(self._shape)
        height, width = self._shape[:2]
        images.show(image, height, width, _view(height, width, draws, flip), out)


_NORMS = {1: ((0.3,), (0.35,)), 3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""Mean and deviation by channels: rounded ones of handwritten digits and Fashion-MNIST (.13/.31, .29/.35) for grey
images, those of ImageNet that torchvision publishes with its weights for colour."""
_kept = threading.local()


def normalise(x: torch.Tensor, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """uint8 images as (x / 255 - mean) / deviation per channel; what is floating already is only converted.

    The result lies in a buffer that this thread keeps: the next call for samples of the same shape overwrites it.
    A fresh batch of floats would cost as much as decoding it. Neither one nor three channels: mean 0.5, deviation 0.3.
    """
    device = torch.device(device)
    x = x.to(device, non_blocking=True)
    if x.is_floating_point():
        return x.to(dtype)
    exact = dtype if dtype == torch.float64 else torch.float32
    result = _kept_buffer(x, exact).copy_(x)
    if _channels_last(result) and result.shape[1] > 1:
        # Rows of width x channels: three channels innermost are too few for vector instructions (3.5 times slower).
        rows = result.permute(0, 2, 3, 1).view(len(x), x.shape[2], -1)
        factor, offset = (value.flatten().repeat(x.shape[3]) for value in _constants(x.shape[1], x.ndim, exact, device))
        rows.mul_(factor).sub_(offset)
    else:
        factor, offset = _constants(x.shape[1], x.ndim, exact, device)
        result.mul_(factor).sub_(offset)
    return result if dtype == exact else _kept_buffer(x, dtype).copy_(result)


@functools.cache
def _constants(
    channels: int, dimensions: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """1 / (255 deviation) and mean / deviation, as [1, channels, 1...]; kept, or a GPU would wait for them each step."""
    mean, deviation = _NORMS.get(channels if dimensions == 4 else 0, ((0.5,) * channels, (0.3,) * channels))
    centre = torch.tensor(mean, dtype=dtype, device=device).reshape(1, -1, *(1,) * (dimensions - 2))
    scale = torch.tensor(deviation, dtype=dtype, device=device).reshape(centre.shape)
    return 1 / (255 * scale), centre / scale


def _channels_last(x: torch.Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _kept_buffer(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Memory for x in another dtype, in x's memory format, as large as the largest batch so far."""
    last = _channels_last(x)
    buffers: dict[tuple[object, ...], torch.Tensor] = _kept.__dict__.setdefault("buffers", {})
    key = (dtype, x.device, x.shape[1:], last)
    found = buffers.get(key)
    if found is None or len(found) < len(x):
        memory = torch.channels_last if last else torch.contiguous_format
        found = buffers[key] = torch.empty(x.shape, dtype=dtype, device=x.device, memory_format=memory)
    return found[: len(x)]
