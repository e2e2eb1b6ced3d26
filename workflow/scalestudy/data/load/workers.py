"""Those who make a loader's batches: the training thread itself, threads, or processes."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data.decode.images import one_torch_thread
from scalestudy.data.load.dataset import Dataset, PictureDataset
from scalestudy.data.load.pictures import NOTHING, UNWATCHED, no_progress
from scalestudy.data.load.worker import Answer, Setup
from scalestudy.data.pagecache import CacheLimit
from scalestudy.errors import UserError
from scalestudy.spec import run

Batch = tuple[torch.Tensor, torch.Tensor]
HANG_S = 20.0
"""A worker that is at one sample for so long hangs. No store takes longer to say that it does not deliver."""
LOOK_S = 0.5
END_S = 5.0


@dataclass
class Task:
    """One batch to be made, into one slot of the ring."""

    epoch: int
    indices: NDArray[np.int64]
    slot: int
    started_s: float = field(default_factory=time.monotonic)
    ready_s: float = 0.0
    """When it was ready, on the monotonic clock."""
    batch: Batch | None = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    worker: int = -1


class Making:
    """What is the same for all batches of a loader, and what is counted."""

    def __init__(
        self,
        dataset: Dataset,
        spec: run.Loader,
        seed: int,
        augment: str,
        slow_decode_s: float,
        cache_limit: CacheLimit | None,
    ) -> None:
        self.dataset, self.spec, self.seed, self.augment = dataset, spec, seed, augment
        self.slow_decode_s, self.cache_limit = slow_decode_s, cache_limit
        self.slow_decode = self.bytes = 0
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._ring: dict[int, torch.Tensor] = {}

    def batch(self, task: Task, progress: NDArray[np.int64]) -> Batch:
        """Make one here and now."""
        self.slow_down(progress)
        if isinstance(self.dataset, PictureDataset):
            x = self.slot(task.slot, len(task.indices), self.dataset.side(self.spec.size))
            self.dataset.pictures.make(
                task.indices, x.numpy(), augment=self.augment, seed=self.seed, epoch=task.epoch, progress=progress
            )
            batch = x.permute(0, 3, 1, 2), self.dataset.labels_of(task.indices)
        else:
            progress[0] = UNWATCHED
            batch = self.dataset.batch(
                task.indices,
                size=self.spec.size,
                augment=self.augment,
                seed=self.seed,
                epoch=task.epoch,
                train=self.augment != "none",
            )
        self.count(task)
        return batch

    def slow_down(self, progress: NDArray[np.int64]) -> None:
        """The injected slow decode."""
        if self.slow_decode_s:
            progress[0] = UNWATCHED
            self.closed.wait(self.slow_decode_s)

    def count(self, task: Task) -> None:
        """A batch was made: account for what it read."""
        if self.cache_limit is not None:
            for path, offset, size in self.dataset.ranges(task.indices):
                self.cache_limit.touched(path, size, offset)
        with self._lock:
            self.bytes += self.dataset.bytes_of(task.indices)
            self.slow_decode += bool(self.slow_decode_s)

    def slot(self, number: int, rows: int, side: int) -> torch.Tensor:
        """uint8 [rows, side, side, 3] of the ring: memory whose pages are there already."""
        found = self._ring.get(number)
        if found is None or len(found) < rows:
            found = self._ring[number] = torch.empty((rows, side, side, 3), dtype=torch.uint8)
            if self.spec.pin_memory:
                pin(found)
        return found[:rows]

    def stuck(self, task: Task, progress: NDArray[np.int64], who: str) -> UserError | None:
        """What to say of a worker that a due task waits for, where it hangs."""
        sample, since_ns = progress.tolist()
        since_s = max(since_ns / 1e9, task.started_s)
        limit_s = HANG_S + self.dataset.recipe.how.patience_s
        if sample == UNWATCHED or time.monotonic() - since_s < limit_s:
            return None
        if sample != NOTHING and isinstance(self.dataset, PictureDataset):
            return self.dataset.pictures.unreadable(sample, f"{who} has been at it for {limit_s:.0f} s")
        return UserError(f"{who} has done nothing for {limit_s:.0f} s", "loader", "see what else runs on this node")


def pin(memory: torch.Tensor) -> None:
    """Lock the pages of a tensor, where there is a GPU that can then copy from them. Not yet run on a GPU."""
    if torch.cuda.is_available():
        torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)


class Workers(ABC):
    """Make batches; `start` in the order in which `finish` will ask for them."""

    def __init__(self, making: Making, count: int, slots: int) -> None:
        self.making, self.count, self.slots = making, count, slots

    @abstractmethod
    def start(self, task: Task) -> Task:
        """Have a batch made."""

    @abstractmethod
    def finish(self, task: Task) -> Batch:
        """The batch when it is ready; raises what went wrong with it."""

    def close(self) -> None:  # noqa: B027
        """End the workers."""


class Inline(Workers):
    """The thread that asks for a batch makes it."""

    def __init__(self, making: Making, count: int, slots: int) -> None:
        super().__init__(making, count, slots)
        self._progress = no_progress()

    def start(self, task: Task) -> Task:
        return task

    def finish(self, task: Task) -> Batch:
        with one_torch_thread():
            batch = self.making.batch(task, self._progress)
        task.ready_s = time.monotonic()
        return batch


class Threads(Workers):
    """Each thread makes whole batches: reading, decoding and resizing release the interpreter lock."""

    def __init__(self, making: Making, count: int, slots: int) -> None:
        super().__init__(making, count, slots)
        # A thread that never set its number of torch threads inherits the last one set anywhere, which will be
        # the workers' 1: pin the caller's before.
        torch.set_num_threads(torch.get_num_threads())
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._progress = [no_progress() for _ in range(count)]
        # Daemons: one that hangs in a read must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"loader {number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, task: Task) -> Task:
        self._tasks.put(task)
        return task

    def _work(self, number: int) -> None:
        torch.set_num_threads(1)
        while (task := self._tasks.get()) is not None and not self.making.closed.is_set():
            task.worker = number
            try:
                task.batch = self.making.batch(task, self._progress[number])
            except BaseException as error:
                task.error = error
            self._progress[number][0] = NOTHING
            task.ready_s = time.monotonic()
            task.done.set()

    def finish(self, task: Task) -> Batch:
        while not task.done.wait(LOOK_S):
            if task.worker >= 0:
                who = f"worker {task.worker} (a thread)"
                if stuck := self.making.stuck(task, self._progress[task.worker], who):
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


class Processes(Workers):
    """Each process makes every so-many-th batch into memory that it shares with this one.

    They are new processes, not copies: a fork of one that has threads can hang, and takes its memory along. The shared
    memory has no name, so nothing of it can be left behind. They end when this process does.
    """

    def __init__(self, making: Making, count: int, slots: int) -> None:
        super().__init__(making, count, slots)
        self._memory: np.ndarray | None = None
        self._rows = 0
        self._workers: list[_Process] = []
        self._turn = 0

    def start(self, task: Task) -> Task:
        if self._memory is None:
            self._open(task)
        if len(task.indices) > self._rows:
            raise UserError(f"a batch of {len(task.indices)} follows one of {self._rows}", "loader.kind", "use threads")
        task.worker = self._turn % self.count
        self._turn += 1
        with contextlib.suppress(OSError):  # one that died is found when its batch is due
            self._workers[task.worker].connection.send((task.epoch, task.indices, task.slot))
        return task

    def _open(self, task: Task) -> None:
        """Shared memory for the ring and everybody's progress, and the processes."""
        data, spec = self.making.dataset, self.making.spec
        x, _ = data.batch(
            task.indices[:1], size=spec.size, augment="none", seed=self.making.seed, epoch=task.epoch, train=False
        )
        self._rows = len(task.indices)
        slot_bytes = self._rows * x.numel() * x.element_size()
        head = self.count * 16
        descriptor = os.memfd_create("scalestudy-batches")
        os.ftruncate(descriptor, head + self.slots * slot_bytes)
        shared = np.frombuffer(mmap.mmap(descriptor, head + self.slots * slot_bytes), np.uint8)
        self._progress = shared[:head].view(np.int64).reshape(self.count, 2)
        self._progress[:] = (UNWATCHED, 0)
        self._memory = shared[head:].reshape(self.slots, slot_bytes)
        if spec.pin_memory:
            pin(torch.from_numpy(self._memory).flatten())
        for number in range(self.count):
            setup = Setup(
                recipe=data.recipe,
                size=spec.size,
                augment=self.making.augment,
                seed=self.making.seed,
                slow_decode_s=self.making.slow_decode_s,
                side=data.side(spec.size) if isinstance(data, PictureDataset) else None,
                slots=self.slots,
                slot_bytes=slot_bytes,
                workers=self.count,
                number=number,
            )
            self._workers.append(_Process.started(setup, descriptor))
        os.close(descriptor)

    def finish(self, task: Task) -> Batch:
        worker = self._workers[task.worker]
        who = f"worker {task.worker} (process {worker.process.pid})"
        try:
            while not worker.connection.poll(LOOK_S):
                if stuck := self.making.stuck(task, self._progress[task.worker], who):
                    raise stuck
            answer: Answer = worker.connection.recv()
        except (EOFError, ConnectionError):
            raise self._death(task, who) from None
        task.ready_s = answer.ready_s
        if answer.error is not None:
            raise UserError(*answer.error) if isinstance(answer.error, tuple) else RuntimeError(answer.error)
        self.making.count(task)
        return self._batch(task, answer)

    def _batch(self, task: Task, answer: Answer) -> Batch:
        assert self._memory is not None
        data, memory = self.making.dataset, self._memory[task.slot]
        if isinstance(data, PictureDataset):
            side = data.side(self.making.spec.size)
            x = memory.reshape(-1, side, side, 3)[: len(task.indices)]
            return torch.from_numpy(x).permute(0, 3, 1, 2), data.labels_of(task.indices)
        assert answer.x is not None and answer.y is not None
        shape, kind = answer.x
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        return torch.from_numpy(memory[:size].view(kind).reshape(shape)), torch.from_numpy(answer.y)

    def _death(self, task: Task, who: str) -> UserError:
        code = self._workers[task.worker].process.wait()
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        sample = int(self._progress[task.worker][0])
        if sample >= 0 and isinstance(self.making.dataset, PictureDataset):
            return self.making.dataset.pictures.unreadable(sample, f"{who} {ending} while it was at it")
        return UserError(f"{who} {ending}", "loader", "see its words above, and what else runs on this node")

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()
            worker.process.kill()  # it has nothing to finish: what it writes is memory that goes with it
        for worker in self._workers:
            worker.process.wait()
        self._workers.clear()


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    connection: Connection

    @classmethod
    def started(cls, setup: Setup, memory: int) -> _Process:
        """A worker process that has its set-up and waits for batches to make."""
        ours, theirs = socket.socketpair()
        # Not by `-m`: what it answers would be of another module than the one that is known here.
        program = "from scalestudy.data.load.worker import main; main()"
        command = [sys.executable, "-c", program, str(theirs.fileno()), str(memory), str(os.getpid())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), memory))
        theirs.close()
        connection = Connection(ours.detach())
        connection.send(setup)
        return cls(process, connection)
