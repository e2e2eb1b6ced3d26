"""Who makes a loader's batches: the training thread itself, threads, or processes."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import torch

from scalestudy.data.decode.images import one_torch_thread
from scalestudy.data.load.batch_maker import Batch, BatchMaker, BatchTask, Registered, pinned
from scalestudy.data.load.dataset import DEFAULT_SIDE, PictureDataset
from scalestudy.data.load.image_reader import NO_SAMPLE, UNWATCHED, no_progress
from scalestudy.data.load.worker_process import MadeBatch, Worker, shared_arrays
from scalestudy.data.progress import CHECK_S, Watch
from scalestudy.errors import UserError

END_S = 5.0
"""Seconds in which threads have to end."""


class Workers:
    """Make batches; call `start` in the order in which `finish` is called later.

    Here the thread that requests a batch makes it; subclasses have threads or processes.
    """

    def __init__(self, maker: BatchMaker, count: int, slots: int) -> None:
        self.maker, self.count, self.slots = maker, count, slots

    def start(self, task: BatchTask) -> BatchTask:
        """Request a batch."""
        return task

    def finish(self, task: BatchTask) -> Batch:
        """Wait for the batch; raises the error that occurred while it was made."""
        with one_torch_thread():
            return self.maker.batch(task, no_progress())

    def close(self) -> None:
        """End the workers."""


class Threads(Workers):
    """Each thread makes whole batches; the kernel reads, decodes and resizes one without the interpreter lock."""

    def __init__(self, maker: BatchMaker, count: int, slots: int) -> None:
        super().__init__(maker, count, slots)
        # A thread that never set its number of torch threads inherits the last one set anywhere, which will be
        # the workers' 1: pin the caller's before.
        torch.set_num_threads(torch.get_num_threads())
        self._tasks: queue.SimpleQueue[BatchTask | None] = queue.SimpleQueue()
        self._progress = [no_progress() for _ in range(count)]
        # Daemons: a thread that hangs in a read must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"loader {number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, task: BatchTask) -> BatchTask:
        self._tasks.put(task)
        return task

    def _work(self, number: int) -> None:
        torch.set_num_threads(1)
        while (task := self._tasks.get()) is not None and not self.maker.closed.is_set():
            task.worker = number
            try:
                task.batch = self.maker.batch(task, self._progress[number])
            except BaseException as error:
                task.error = error
            self._progress[number][0] = NO_SAMPLE
            task.done.set()

    def finish(self, task: BatchTask) -> Batch:
        watch = Watch()
        while not task.done.wait(CHECK_S):
            if task.worker >= 0:
                who = f"worker {task.worker} (a thread)"
                if stuck := self.maker.stuck(watch, self._progress[task.worker], who):
                    raise stuck
        if task.error is not None:
            raise task.error
        assert task.batch is not None
        return task.batch

    def close(self) -> None:
        for _ in self._threads:  # those that wait; the others see that the maker is closed
            self._tasks.put(None)
        deadline = time.monotonic() + END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class Processes(Workers):
    """Worker processes take turns; each makes whole batches into memory that it shares with this process.

    They are started anew, not forked: the fork of a process with threads can hang, and copies its memory. The shared
    memory has no name, so none is left behind. The processes end when this one does.
    """

    def __init__(self, maker: BatchMaker, count: int, slots: int) -> None:
        super().__init__(maker, count, slots)
        self._rows = self._turn = 0
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._registered: Registered | None = None

    def start(self, task: BatchTask) -> BatchTask:
        if not self._workers:
            self._open(task)
        assert len(task.indices) <= self._rows, "a later batch is larger than the first"
        task.worker = self._turn % self.count
        self._turn += 1
        with contextlib.suppress(OSError):  # a dead worker is reported when its batch is due
            self._workers[task.worker][1].send((task.epoch, task.indices, task.slot))
        return task

    def _open(self, task: BatchTask) -> None:
        """Create the shared memory for the ring and the workers' progress, and start the processes."""
        maker, data, spec = self.maker, self.maker.dataset, self.maker.spec
        first = task.indices[:1]
        x, _ = data.batch(first, size=spec.size, augment="none", seed=maker.seed, epoch=task.epoch)
        self._rows = len(task.indices)
        shared = (self.count, self.slots, self._rows * x.nbytes)
        memory = os.memfd_create("scalestudy-batches")
        os.ftruncate(memory, self.count * 16 + self.slots * self._rows * x.nbytes)
        whole, self._progress, self._ring = shared_arrays(memory, *shared)
        self._progress[:] = (UNWATCHED, 0)
        if maker.device is not None:
            self._registered = Registered(torch.from_numpy(whole), maker.device)
        side = (spec.size or DEFAULT_SIDE) if isinstance(data, PictureDataset) else None
        for number in range(self.count):
            worker = Worker(data.handle, spec.size, spec.augment, maker.seed, maker.slow_decode_s, side, shared, number)
            self._workers.append(_process(worker, memory))
        os.close(memory)

    def finish(self, task: BatchTask) -> Batch:
        process, connection = self._workers[task.worker]
        who, watch = f"worker {task.worker} (process {process.pid})", Watch()
        try:
            while not connection.poll(CHECK_S):
                if stuck := self.maker.stuck(watch, self._progress[task.worker], who):
                    raise stuck
            made: MadeBatch = connection.recv()
        except (EOFError, ConnectionError):
            raise self._death(task, who) from None
        if made.error is not None:
            raise UserError(*made.error) if isinstance(made.error, tuple) else RuntimeError(made.error)
        self.maker.count(task)
        data, memory = self.maker.dataset, self._ring[task.slot]
        if isinstance(data, PictureDataset):
            side = self.maker.spec.size or DEFAULT_SIDE
            x = torch.from_numpy(memory.reshape(-1, side, side, 3)[: len(task.indices)]).permute(0, 3, 1, 2)
            return pinned((x, data.labels_of(task.indices)), self.maker.device)
        assert made.x is not None and made.y is not None
        shape, kind = made.x
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        x = torch.from_numpy(memory[:size].view(kind).reshape(shape))
        return pinned((x, torch.from_numpy(made.y)), self.maker.device)

    def _death(self, task: BatchTask, who: str) -> UserError:
        code = self._workers[task.worker][0].wait()
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        sample = int(self._progress[task.worker][0])
        if sample >= 0 and isinstance(self.maker.dataset, PictureDataset):
            return self.maker.dataset.pictures.unreadable(sample, f"{who} {ending} while working on it")
        return UserError(f"{who} {ending}", "loader", "see its messages above, and check what else runs on this node")

    def close(self) -> None:
        for process, connection in self._workers:
            connection.close()
            process.kill()  # nothing has to be finished: it writes only to memory that is freed with it
        for process, _ in self._workers:
            process.wait()
        self._workers.clear()
        if self._registered is not None:
            self._registered.close()
            self._registered = None


def _process(worker: Worker, memory: int) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a worker process; it has its set-up and waits for batches to make."""
    ours, theirs = socket.socketpair()
    # Not by `-m`: its results would belong to `__main__`, and could not be unpickled here.
    program = "from scalestudy.data.load.worker_process import main; main()"
    command = [sys.executable, "-c", program, str(theirs.fileno()), str(memory), str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), memory))
    theirs.close()
    connection = Connection(ours.detach())
    connection.send(worker)
    return process, connection
