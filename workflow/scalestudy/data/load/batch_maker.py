"""Making one batch of a loader; page-locked memory for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import record_function

from scalestudy.data.load.dataset import DEFAULT_SIDE, Dataset, PictureDataset
from scalestudy.data.load.image_reader import NO_SAMPLE, UNWATCHED
from scalestudy.data.progress import Watch
from scalestudy.emulation.page_cache import CacheLimit
from scalestudy.errors import UserError
from scalestudy.spec import run

Batch = tuple[torch.Tensor, torch.Tensor]
MAKING = "make batch"
"""Span of a batch that is made, in a trace of torch.profiler."""
HANG_S = 20.0
"""A worker that stays at one sample for longer than this hangs: every store reports an error earlier."""


@dataclass
class BatchTask:
    """One batch to be made into one slot of the ring."""

    epoch: int
    indices: NDArray[np.int64]
    slot: int
    batch: Batch | None = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    worker: int = -1


class BatchMaker:
    """Makes the batches of a loader."""

    def __init__(
        self,
        dataset: Dataset,
        spec: run.Loader,
        seed: int,
        slow_decode_s: float,
        cache: CacheLimit | None,
    ) -> None:
        self.dataset, self.spec, self.seed = dataset, spec, seed
        self.slow_decode_s, self._cache = slow_decode_s, cache
        self.slow_decode = 0
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._ring: dict[int, torch.Tensor] = {}
        computes = spec.pin_memory and torch.cuda.is_initialized()  # CUDA is not started for that
        self.device = torch.cuda.current_device() if computes else None
        """The GPU for which batches are page-locked: copies from there to it are asynchronous."""
        self._again: tuple[Batch, Batch] | None = None
        """The last batch that was page-locked, before and after: that of `mode: synthetic` comes again and again."""

    def batch(self, task: BatchTask, progress: NDArray[np.int64]) -> Batch:
        """Make one batch in this thread."""
        if self.device is not None:
            # A thread begins with the first GPU: every rank would take memory of that one too.
            torch.cuda.set_device(self.device)
        progress[0] = UNWATCHED
        with record_function(MAKING):
            return self._made(task, progress)

    def _made(self, task: BatchTask, progress: NDArray[np.int64]) -> Batch:
        data, size, augment = self.dataset, self.spec.size, self.spec.augment
        if self.slow_decode_s:
            self.closed.wait(self.slow_decode_s)
        if isinstance(data, PictureDataset):
            x = self._slot(task.slot, len(task.indices), size or DEFAULT_SIDE)
            data.pictures.make(
                task.indices, x.numpy(), augment=augment, seed=self.seed, epoch=task.epoch, progress=progress
            )
            batch = x.permute(0, 3, 1, 2), data.labels_of(task.indices)
        else:
            batch = data.batch(task.indices, size=size, augment=augment, seed=self.seed, epoch=task.epoch)
        self.count(task)
        before = self._again
        if before is None or before[0][0] is not batch[0]:
            self._again = before = batch, pinned(batch, self.device)
        return before[1]

    def count(self, task: BatchTask) -> None:
        """Count a batch that was made: the emulated page cache holds what it read."""
        if self._cache is not None:
            for path, offset, size in self.dataset.ranges(task.indices):
                self._cache.touched(path, size, offset)
        with self._lock:
            self.slow_decode += bool(self.slow_decode_s)

    def _slot(self, number: int, rows: int, side: int) -> torch.Tensor:
        """uint8 [rows, side, side, 3] of the ring: memory whose pages are already allocated."""
        found = self._ring.get(number)
        if found is None or len(found) < rows:
            found = self._ring[number] = _empty((rows, side, side, 3), self.device)
        return found[:rows]

    def stuck(self, watch: Watch, progress: NDArray[np.int64], who: str) -> UserError | None:
        """The error to raise where the worker of a due task hangs; None where it does not."""
        sample, since_ns = progress.tolist()
        limit_s = HANG_S + self.dataset.handle.patience_s
        if watch.still_s((sample, since_ns)) < limit_s or sample == UNWATCHED:
            return None
        if sample != NO_SAMPLE and isinstance(self.dataset, PictureDataset):
            return self.dataset.pictures.unreadable(sample, f"{who} has worked on it for {limit_s:.0f} s")
        what = f"{who} has made no progress for {limit_s:.0f} s"
        return UserError(what, "loader", "check what else runs on this node")


# Page-locked host memory


def _empty(shape: tuple[int, ...], device: int | None) -> torch.Tensor:
    """uint8 memory; page-locked where there is a device. It is given back by torch, once no copy from it is under way."""
    if device is None:
        return torch.empty(shape, dtype=torch.uint8)
    try:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        raise _refused(torch.Size(shape).numel(), str(error)) from None


def pinned(batch: Batch, device: int | None) -> Batch:
    """The batch in page-locked memory; as it is where there is no device, or it lies there already."""
    if device is None:
        return batch
    x, y = batch
    try:
        return x if x.is_pinned() else x.pin_memory(), y if y.is_pinned() else y.pin_memory()
    except RuntimeError as error:
        raise _refused(x.nbytes + y.nbytes, str(error)) from None


class Registered:
    """Memory that is not torch's, such as what processes share, page-locked until `close`."""

    def __init__(self, memory: torch.Tensor, device: int) -> None:
        """Raises UserError where the system refuses."""
        self._address, self._device = memory.data_ptr(), device
        status = int(torch.cuda.cudart().cudaHostRegister(self._address, memory.nbytes, 0))
        if status:
            raise _refused(memory.nbytes, f"cudaHostRegister: CUDA error {status}")

    def close(self) -> None:
        """Give it back, before its pages are freed: CUDA would take what is mapped there later for page-locked."""
        torch.cuda.synchronize(self._device)  # a copy from it may be under way
        status = int(torch.cuda.cudart().cudaHostUnregister(self._address))
        assert not status, f"cudaHostUnregister: CUDA error {status}"


def _refused(size: int, why: str) -> UserError:
    what = f"{size / 2**20:,.0f} MiB of batches cannot be page-locked: {why.strip().splitlines()[0]}"
    remedy = "make fewer batches ahead (`loader.workers`, `loader.prefetch`), or set `loader.pin_memory: false`"
    return UserError(what, "loader.pin_memory", remedy)
