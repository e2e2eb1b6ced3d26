"""One split of prepared data, and samples that are tensors, which a source can make while they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.data.decode import images
from scalestudy.data.manifest import Manifest, Split
from scalestudy.errors import UserError

if TYPE_CHECKING:
    from scalestudy.data.load.readers import DatasetHandle
    from scalestudy.data.load.sampler import StorageOrder

Indices = NDArray[np.int64]


class Dataset(ABC):
    """One split of prepared data. All methods may be called by several threads at once."""

    handle: DatasetHandle
    """How it was opened, so that a worker process can open it too."""
    stream: StorageOrder | None = None
    """The storage order of samples, where the input mode reads them in sequence."""

    def __init__(self, manifest: Manifest, split: Split) -> None:
        self.samples = manifest.split(split).samples
        self.channels, self.classes, self.task = manifest.channels, manifest.classes, manifest.task
        self.image_size = (round(manifest.height or 1), round(manifest.width or 1))
        """Height and width of a training image where the loader names no size."""

    @property
    def files(self) -> list[Path]:
        """The files whose pages in the page cache matter."""
        return []

    @abstractmethod
    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x uint8 [B, C, H, W] (own datasets: their dtype), y int64 [B] or, multilabel, float32 [B, classes].

        `augment` (`none`, `flip`, `crop_flip`) is drawn from seed, epoch and sample alone.
        Raises UserError where a sample is damaged.
        """

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        """Path, offset and bytes of what is read of local files for these samples. Empty for samples held in memory."""
        return iter(())


class TensorDataset(Dataset):
    """Samples that are tensors of one shape before any augmentation."""

    @abstractmethod
    def gather(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """x [B, ...] in new memory, and y."""

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.gather(indices)
        if x.ndim != 4:
            if size is None and augment == "none":
                return x, y
            shape = tuple(x.shape[1:])
            raise UserError(f"samples of shape {shape} are not images", "loader", "leave `size` and `augment` out")
        side = (size, size) if size is not None else (x.shape[2], x.shape[3])
        if augment == "none":
            return images.resized(x, side), y
        draws = counter_rng.uniforms(images.DRAWS, counter_rng.AUGMENT, seed, epoch, indices)
        if augment == "crop_flip":
            shown = x.new_empty((len(x), x.shape[1], *side))
            for row, numbers in enumerate(draws.tolist()):
                top, left, rows, columns, _ = images.random_view(x.shape[2], x.shape[3], numbers)
                shown[row] = images.resized(x[row : row + 1, :, top : top + rows, left : left + columns], side)[0]
            x = shown
        flipped = torch.from_numpy(draws[:, 2 * images.ATTEMPTS] < 0.5)
        x = torch.where(flipped[:, None, None, None], x.flip(-1), x)
        return images.resized(x, side), y
