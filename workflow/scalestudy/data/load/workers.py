"""Who makes a loader's batches: the training thread itself, or threads. `processes` has worker processes."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from abc import ABC, abstractmethod

import torch

from scalestudy.data.decode.images import one_torch_thread
from scalestudy.data.load.batch_maker import Batch, BatchMaker, BatchTask
from scalestudy.data.load.image_reader import NO_SAMPLE, no_progress

CHECK_S = 0.5
"""Seconds between two checks whether a worker that is waited for hangs."""
END_S = 5.0
"""Seconds in which threads have to end."""


class Workers(ABC):
    """Make batches; call `start` in the order in which `finish` is called later."""

    def __init__(self, maker: BatchMaker, count: int, slots: int) -> None:
        self.maker, self.count, self.slots = maker, count, slots

    @abstractmethod
    def start(self, task: BatchTask) -> BatchTask:
        """Request a batch."""

    @abstractmethod
    def finish(self, task: BatchTask) -> Batch:
        """Wait for the batch; raises the error that occurred while it was made."""

    def close(self) -> None:  # noqa: B027
        """End the workers."""


class Inline(Workers):
    """The thread that requests a batch makes it."""

    def __init__(self, maker: BatchMaker, count: int, slots: int) -> None:
        super().__init__(maker, count, slots)
        self._progress = no_progress()

    def start(self, task: BatchTask) -> BatchTask:
        return task

    def finish(self, task: BatchTask) -> Batch:
        with one_torch_thread():
            batch = self.maker.batch(task, self._progress)
        task.ready_s = time.monotonic()
        return batch


class Threads(Workers):
    """Each thread makes whole batches: reading, decoding and resizing release the interpreter lock."""

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
            task.ready_s = time.monotonic()
            task.done.set()

    def finish(self, task: BatchTask) -> Batch:
        while not task.done.wait(CHECK_S):
            if task.worker >= 0:
                who = f"worker {task.worker} (a thread)"
                if stuck := self.maker.stuck(task, self._progress[task.worker], who):
                    raise stuck
        if task.error is not None:
            raise task.error
        assert task.batch is not None
        return task.batch

    def close(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
