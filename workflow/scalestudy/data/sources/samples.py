"""One split of prepared data, and samples that are tensors, which a source can make while they are read.

torch is imported where it is used: a worker process works without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.data.catalogue import MODES, Mode
from scalestudy.data.decode import images
from scalestudy.data.manifest import Manifest, Split
from scalestudy.errors import UserError

if TYPE_CHECKING:
    import torch

    from scalestudy.data.load.sampler import StorageOrder
    from scalestudy.data.load.stream import StreamReader
    from scalestudy.emulation.storage import Throttle

Indices = NDArray[np.int64]
ArrayBatch = tuple[NDArray[Any], NDArray[Any]]
Memory = NDArray[np.uint8] | None


@dataclass(frozen=True)
class DatasetHandle:
    """Everything that another process needs to open the same dataset."""

    manifest: Path
    split: Split
    mode: Mode | None = None
    """None: the first mode of the format."""
    origin: str | None = None
    """A folder or an http(s) address that holds the same files as the bulk."""
    shuffle_buffer: int = 1000
    """Samples from which a stream draws the next."""
    throttle: Throttle | None = None
    """An emulated storage, which the processes of a node share."""
    memory: str | None = None
    """File of the samples that mode `memory` keeps, which worker processes share."""

    def mode_of(self, format: str) -> Mode:
        """The input mode; UserError where data of this format does not have it."""
        has = MODES[format]
        if self.mode is not None and self.mode not in has:
            what = f"data of format `{format}` cannot be read in mode `{self.mode}`"
            raise UserError(what, "loader.mode", f"set it to one of: {', '.join(has)}")
        return self.mode or has[0]


class Transform(NamedTuple):
    """What is made of each image."""

    size: int | None
    """Height and width; None: as the source has them."""
    augment: str
    """`none`, `flip` or `crop_flip`, drawn from seed, epoch and sample alone."""
    seed: int


class Dataset(ABC):
    """One split of prepared data. All methods may be called by several threads at once."""

    handle: DatasetHandle
    """Arguments to open the dataset again in a worker process."""
    stream: StorageOrder | None = None
    """The storage order of samples, where the input mode reads them in sequence."""
    feed: StreamReader | None = None
    """Their reader then."""

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
    def arrays(self, indices: Indices, epoch: int, transform: Transform, out: Memory = None) -> ArrayBatch:
        """x uint8 [B, C, H, W] (own datasets: their dtype), y int64 [B] or, multilabel, float32 [B, classes].

        x may lie in `out`, which has at least `slot_bytes`. Raises UserError where a sample is damaged.
        """

    def batch(
        self, indices: Indices, *, size: int | None, augment: str, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and y of `arrays`, as tensors in memory of their own."""
        import torch

        x, y = self.arrays(indices, epoch, Transform(size, augment, seed))
        return torch.from_numpy(x), torch.from_numpy(y)

    def slot_bytes(self, samples: int, size: int | None) -> int:
        """Bytes of the memory into which `arrays` makes so many samples; 0: it allocates memory itself."""
        return 0

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        """Path, offset and bytes of what is read of local files for these samples. Empty for samples held in memory."""
        return iter(())


class TensorDataset(Dataset):
    """Samples that are tensors of one shape before any augmentation."""

    @abstractmethod
    def gather(self, indices: Indices) -> ArrayBatch:
        """x [B, ...] in new memory, and y."""

    def arrays(self, indices: Indices, epoch: int, transform: Transform, out: Memory = None) -> ArrayBatch:
        size, augment, seed = transform
        x, y = self.gather(indices)
        if x.ndim != 4:
            if size is None and augment == "none":
                return x, y
            raise UserError(
                f"samples of shape {x.shape[1:]} are not images", "loader", "leave `size` and `augment` out"
            )
        side = (size, size) if size is not None else (x.shape[2], x.shape[3])
        if augment == "none":
            return _resized(x, side), y
        draws = counter_rng.uniforms(images.DRAWS, counter_rng.AUGMENT, seed, epoch, indices)
        if augment == "crop_flip":
            shown = np.empty((*x.shape[:2], *side), x.dtype)
            for row, numbers in enumerate(draws.tolist()):
                top, left, rows, columns, _ = images.random_view(x.shape[2], x.shape[3], numbers)
                shown[row] = _resized(x[row : row + 1, :, top : top + rows, left : left + columns], side)[0]
            x = shown
        flipped = draws[:, 2 * images.ATTEMPTS] < 0.5
        x[flipped] = x[flipped, ..., ::-1]
        return _resized(x, side), y


def _resized(x: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """[B, C, H, W] at another height and width."""
    if x.shape[2:] == size:
        return x
    import torch

    shown: NDArray[Any] = images.resized(torch.from_numpy(x), size).numpy()
    return shown
