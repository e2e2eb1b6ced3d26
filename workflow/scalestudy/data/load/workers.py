"""Who makes a loader's batches: the training thread itself, threads, or processes."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import record_function

from scalestudy.data.decode.images import one_torch_thread
from scalestudy.data.load.page_locked import Batch, Registered, empty, pinned
from scalestudy.data.load.worker_process import Failure, MadeBatch, Work, shared_ring
from scalestudy.data.sources.samples import ArrayBatch, Dataset, Transform
from scalestudy.emulation.page_cache import CacheLimit
from scalestudy.errors import UserError
from scalestudy.spec import run

MAKING = "make batch"
"""Span of a batch that is made, in a trace of torch.profiler."""


class BatchTask(NamedTuple):
    """One batch to be made into one slot of the ring."""

    epoch: int
    indices: NDArray[np.int64]
    slot: int


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
        found = self._ring.get(number)
        if found is None or len(found) < size:
            found = self._ring[number] = empty(size, self.device)
        slot: NDArray[np.uint8] = found.numpy()
        return slot

    def close(self) -> None:
        """End the workers; threads finish their current batch."""


class Threads(Workers):
    """Each thread makes whole batches; the kernel reads, decodes and resizes one without the interpreter lock."""

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:
        # A thread that never set its number of torch threads inherits the last one set anywhere, which will be
        # the workers' 1: pin the caller's before.
        torch.set_num_threads(torch.get_num_threads())
        return ThreadPoolExecutor(self.count, "loader", torch.set_num_threads, (1,))

    def start(self, task: BatchTask) -> Callable[[], Batch]:
        return self._pool.submit(self.make, task).result

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class Processes(Workers):
    """Worker processes take turns; each makes whole batches into memory that it shares with this process.

    They are started anew, not forked: the fork of a process with threads can hang, and copies its memory. The shared
    memory has no name, so none is left behind. The processes end when this one does.
    """

    _rows = _turn = 0
    _workers: Sequence[tuple[subprocess.Popen[bytes], Connection]] = ()
    _registered: Registered | None = None

    def start(self, task: BatchTask) -> Callable[[], Batch]:
        if not self._workers:
            self._open(task)
        assert len(task.indices) <= self._rows, "a later batch is larger than the first"
        number = self._turn % self.count
        self._turn += 1
        with contextlib.suppress(OSError):  # a dead worker is reported when its batch is due
            self._workers[number][1].send(tuple(task))
        return functools.partial(self._received, task, number)

    def _open(self, task: BatchTask) -> None:
        """Create the shared memory for the ring, and start the processes."""
        x, _ = self.dataset.arrays(task.indices[:1], task.epoch, self.transform._replace(augment="none"))
        self._rows = len(task.indices)
        work = Work(self.dataset.handle, self.transform, self.slow_decode_s, self.slots, self._rows * x.nbytes)
        memory = os.memfd_create("scalestudy-batches")
        os.ftruncate(memory, work.slots * work.slot_bytes)
        self._shared = shared_ring(memory, work.slots, work.slot_bytes)
        if self.device is not None:
            self._registered = Registered(torch.from_numpy(self._shared), self.device)
        self._workers = [_process(work, memory) for _ in range(self.count)]
        os.close(memory)

    def _received(self, task: BatchTask, number: int) -> Batch:
        process, connection = self._workers[number]
        try:
            made: MadeBatch | Failure = connection.recv()
        except (EOFError, ConnectionError):
            code = process.wait()
            ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            what, remedy = f"worker {number} (process {process.pid}) {ending}", "check what else runs on this node"
            raise UserError(what, "loader", f"see its messages above, and {remedy}") from None
        if not isinstance(made, MadeBatch):
            raise RuntimeError(made) if isinstance(made, str) else UserError(*made)
        self.count_made(task)
        x = np.ndarray(made.shape, made.dtype, self._shared[task.slot], strides=made.strides)
        return pinned((torch.from_numpy(x), torch.from_numpy(made.y)), self.device)

    def close(self) -> None:
        for process, connection in self._workers:
            connection.close()
            process.kill()  # nothing has to be finished: it writes only to memory that is freed with it
        for process, _ in self._workers:
            process.wait()
        self._workers = ()
        if self._registered is not None:
            self._registered.close()
            self._registered = None


def _process(work: Work, memory: int) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a worker process; it has its set-up and waits for batches to make."""
    ours, theirs = socket.socketpair()
    # Not by `-m`: its results would belong to `__main__`, and could not be unpickled here.
    program = "from scalestudy.data.load.worker_process import main; main()"
    command = [sys.executable, "-c", program, str(theirs.fileno()), str(memory), str(os.getpid())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # of torch, where it is needed
    files = (theirs.fileno(), memory)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=files)
    theirs.close()
    connection = Connection(ours.detach())
    connection.send(work)
    return process, connection
