"""Who makes a loader's batches: the training thread itself, or threads; processes.py has a third kind."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import record_function

from scalestudy.data.decode.images import one_torch_thread
from scalestudy.data.load.page_locked import Batch, empty, pinned
from scalestudy.data.sources.samples import ArrayBatch, Dataset, Transform
from scalestudy.errors import UserError
from scalestudy.locks import SAY_AFTER_S, SAY_AGAIN_S
from scalestudy.spec import run

if TYPE_CHECKING:
    from scalestudy.emulation.page_cache import CacheLimit

MAKING = "make batch"
"""Span of a batch that is made, in a trace of torch.profiler."""
END_S = 5.0
"""Seconds in which threads have to end."""
MAX_WAIT_S = 1800
"""Seconds until a batch that does not come is an error. Reads wait while a server of Lustre is replaced: its clients have
900 s to reconnect (OBD_RECOVERY_TIME_HARD of obd_support.h), after its loss was detected."""


class BatchTask(NamedTuple):
    """One batch to be made into one slot of the ring."""

    epoch: int
    indices: NDArray[np.int64]
    slot: int

    def __str__(self) -> str:
        first, more = ", ".join(map(str, self.indices[:8].tolist())), len(self.indices) - 8
        return f"the batch of epoch {self.epoch} with samples {first}{f' and {more} more' if more > 0 else ''}"

    def wait(self, arrived: Callable[[float], bool]) -> None:
        """Wait until `arrived`, which waits for so many seconds; UserError after MAX_WAIT_S.

        A wait prints its reason after SAY_AFTER_S, and then every SAY_AGAIN_S. Time in which this process was suspended
        does not count.
        """
        for waited_s in range(1, MAX_WAIT_S + 1):
            if arrived(1.0):
                return
            if waited_s % SAY_AGAIN_S == SAY_AFTER_S:
                print(f"scalestudy: waiting for {self}, for {waited_s} s now", file=sys.stderr, flush=True)
        remedy = "check the storage of the data, and what else runs on this node"
        raise UserError(f"{self} did not come within {MAX_WAIT_S} s", "loader", remedy)


class Workers:
    """Make batches. Here the thread that requests a batch makes it; subclasses have threads or processes."""

    def __init__(
        self, dataset: Dataset, spec: run.Loader, seed: int, slow_decode_s: float, cache: CacheLimit | None
    ) -> None:
        self.dataset, self.transform = dataset, Transform(spec.size, spec.augment, seed)
        self.slow_decode_s, self._cache = slow_decode_s, cache
        self.slow_decode = 0
        """How often the injected slow decode fired."""
        self.count, self.ahead = spec.workers, spec.workers * spec.prefetch
        self.slots = self.ahead + 2
        self._lock = threading.Lock()
        self._ring: dict[int, torch.Tensor] = {}
        computes = spec.pin_memory and torch.cuda.is_initialized()  # CUDA is not started for that
        self.device = torch.cuda.current_device() if computes else None
        """The GPU for which batches are page-locked."""
        self._again: tuple[ArrayBatch, Batch] | None = None
        """The last batch, before and after it was page-locked: that of `mode: synthetic` comes again and again."""

    def start(self, task: BatchTask) -> Callable[[], Batch]:
        """Request a batch; the function waits for it, and raises the error that occurred while it was made.

        Functions are called in the order of the requests.
        """
        return functools.partial(one_torch_thread()(self.make), task)

    def make(self, task: BatchTask) -> Batch:
        """Make one batch in this thread."""
        if self.device is not None:
            # A thread begins with the first GPU: every rank would take memory of that one too.
            torch.cuda.set_device(self.device)
        with record_function(MAKING):
            return self._made(task)

    def _made(self, task: BatchTask) -> Batch:
        if self.slow_decode_s:
            time.sleep(self.slow_decode_s)
        size = self.dataset.slot_bytes(len(task.indices), self.transform.size)
        out = self._slot(task.slot, size) if size else None
        x, y = self.dataset.arrays(task.indices, task.epoch, self.transform, out)
        self.count_made(task)
        again = self._again
        if again is None or again[0][0] is not x:
            self._again = again = (x, y), pinned((torch.from_numpy(x), torch.from_numpy(y)), self.device)
        return again[1]

    def count_made(self, task: BatchTask) -> None:
        """Count a batch that was made: the emulated page cache holds what it read."""
        if self._cache is not None:
            for path, offset, size in self.dataset.ranges(task.indices):
                self._cache.touched(path, size, offset)
        with self._lock:
            self.slow_decode += bool(self.slow_decode_s)

    def _slot(self, number: int, size: int) -> NDArray[np.uint8]:
        """At least `size` bytes of the ring: memory whose pages are already allocated."""
        buffer = self._ring.get(number)
        if buffer is None or len(buffer) < size:
            buffer = self._ring[number] = empty(size, self.device)
        slot: NDArray[np.uint8] = buffer.numpy()
        return slot

    def close(self) -> None:
        """End the workers; threads have END_S to finish their current batch."""


class Threads(Workers):
    """Each thread makes whole batches; the kernel reads, decodes and resizes one without the interpreter lock."""

    _threads: Sequence[threading.Thread] = ()
    _closed = False

    def start(self, task: BatchTask) -> Callable[[], Batch]:
        if not self._threads:
            self._open()
        made = futures.Future[Batch]()
        self._tasks.put((task, made))
        return functools.partial(self._received, task, made)

    def _open(self) -> None:
        # A thread that never set its number of torch threads inherits the last one set anywhere, which will be
        # the workers' 1: pin the caller's before.
        torch.set_num_threads(torch.get_num_threads())
        self._tasks: queue.SimpleQueue[tuple[BatchTask, futures.Future[Batch]] | None] = queue.SimpleQueue()
        # Daemons, unlike those of a pool: a thread that hangs in a read must not keep the process from ending.
        self._threads = [threading.Thread(target=self._work, name="loader", daemon=True) for _ in range(self.count)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        torch.set_num_threads(1)
        while (due := self._tasks.get()) is not None and not self._closed:
            task, made = due
            try:
                made.set_result(self.make(task))
            except BaseException as error:
                made.set_exception(error)

    def _received(self, task: BatchTask, made: futures.Future[Batch]) -> Batch:
        task.wait(lambda seconds: bool(futures.wait([made], seconds).done))
        return made.result()

    def close(self) -> None:
        self._closed = True
        for _ in self._threads:  # those that wait
            self._tasks.put(None)
        deadline = time.monotonic() + END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
