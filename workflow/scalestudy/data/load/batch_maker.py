"""Making one batch of a loader, and the counters of all batches."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data.load.dataset import Dataset, PictureDataset
from scalestudy.data.load.image_reader import NO_SAMPLE, UNWATCHED
from scalestudy.data.load.pinned import Batch, device_to_pin_for, empty, pinned
from scalestudy.emulation.page_cache import CacheLimit
from scalestudy.errors import UserError
from scalestudy.spec import run

HANG_S = 20.0
"""A worker that stays at one sample for longer than this hangs: every store reports an error earlier."""


@dataclass
class BatchTask:
    """One batch to be made into one slot of the ring."""

    epoch: int
    indices: NDArray[np.int64]
    slot: int
    started_s: float = field(default_factory=time.monotonic)
    ready_s: float = 0.0
    """When the batch was ready, on the monotonic clock."""
    batch: Batch | None = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    worker: int = -1


class BatchMaker:
    """Makes the batches of a loader, and counts what they read."""

    def __init__(
        self,
        dataset: Dataset,
        spec: run.Loader,
        seed: int,
        augment: str,
        slow_decode_s: float,
        cache: CacheLimit | None,
    ) -> None:
        self.dataset, self.spec, self.seed, self.augment = dataset, spec, seed, augment
        self.slow_decode_s, self._cache = slow_decode_s, cache
        self.slow_decode = self.bytes = 0
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._ring: dict[int, torch.Tensor] = {}
        self.device = device_to_pin_for() if spec.pin_memory else None
        """The GPU for which batches are page-locked."""
        self._again: tuple[Batch, Batch] | None = None
        """The last batch that was page-locked, before and after: that of `mode: synthetic` comes again and again."""

    def batch(self, task: BatchTask, progress: NDArray[np.int64]) -> Batch:
        """Make one batch in this thread."""
        if self.device is not None:
            # A thread begins with the first GPU: every rank would take memory of that one too.
            torch.cuda.set_device(self.device)
        data, size, augment = self.dataset, self.spec.size, self.augment
        progress[0] = UNWATCHED
        if self.slow_decode_s:
            self.closed.wait(self.slow_decode_s)
        if isinstance(data, PictureDataset):
            x = self._slot(task.slot, len(task.indices), data.side(size))
            data.pictures.make(
                task.indices, x.numpy(), augment=augment, seed=self.seed, epoch=task.epoch, progress=progress
            )
            batch = x.permute(0, 3, 1, 2), data.labels_of(task.indices)
        else:
            batch = data.batch(
                task.indices, size=size, augment=augment, seed=self.seed, epoch=task.epoch, train=augment != "none"
            )
        self.count(task)
        before = self._again
        if before is None or before[0][0] is not batch[0]:
            self._again = before = batch, pinned(batch, self.device)
        return before[1]

    def count(self, task: BatchTask) -> None:
        """Count a batch that was made, and what it read."""
        if self._cache is not None:
            for path, offset, size in self.dataset.ranges(task.indices):
                self._cache.touched(path, size, offset)
        with self._lock:
            self.bytes += self.dataset.bytes_of(task.indices)
            self.slow_decode += bool(self.slow_decode_s)

    def _slot(self, number: int, rows: int, side: int) -> torch.Tensor:
        """uint8 [rows, side, side, 3] of the ring: memory whose pages are already allocated."""
        found = self._ring.get(number)
        if found is None or len(found) < rows:
            found = self._ring[number] = empty((rows, side, side, 3), self.device)
        return found[:rows]

    def stuck(self, task: BatchTask, progress: NDArray[np.int64], who: str) -> UserError | None:
        """The error to raise where the worker of a due task hangs; None where it does not."""
        sample, since_ns = progress.tolist()
        limit_s = HANG_S + self.dataset.handle.how.patience_s
        if sample == UNWATCHED or time.monotonic() - max(since_ns / 1e9, task.started_s) < limit_s:
            return None
        if sample != NO_SAMPLE and isinstance(self.dataset, PictureDataset):
            return self.dataset.pictures.unreadable(sample, f"{who} has worked on it for {limit_s:.0f} s")
        what = f"{who} has made no progress for {limit_s:.0f} s"
        return UserError(what, "loader", "check what else runs on this node")
