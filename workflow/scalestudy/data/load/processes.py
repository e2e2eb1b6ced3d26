"""Worker processes that make a loader's batches into shared memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import torch

from scalestudy.data.load.batch_maker import Batch, BatchMaker, BatchTask
from scalestudy.data.load.dataset import PictureDataset
from scalestudy.data.load.image_reader import UNWATCHED
from scalestudy.data.load.pinned import Registered, pinned
from scalestudy.data.load.worker_process import MadeBatch, WorkerSetup
from scalestudy.data.load.workers import CHECK_S, Workers
from scalestudy.errors import UserError


class Processes(Workers):
    """Worker processes take turns; each makes whole batches into memory that it shares with this process.

    They are started anew, not forked: the fork of a process with threads can hang, and copies its memory. The shared
    memory has no name, so none is left behind. The processes end when this one does.
    """

    def __init__(self, maker: BatchMaker, count: int, slots: int) -> None:
        super().__init__(maker, count, slots)
        self._memory: np.ndarray | None = None
        self._rows = 0
        self._workers: list[WorkerProcess] = []
        self._turn = 0
        self._registered: Registered | None = None

    def start(self, task: BatchTask) -> BatchTask:
        if self._memory is None:
            self._open(task)
        if len(task.indices) > self._rows:
            raise UserError(
                f"a batch of {len(task.indices)} samples is larger than the first, of {self._rows}",
                "loader.kind",
                "set it to `threads`",
            )
        task.worker = self._turn % self.count
        self._turn += 1
        with contextlib.suppress(OSError):  # a dead worker is reported when its batch is due
            self._workers[task.worker].connection.send((task.epoch, task.indices, task.slot))
        return task

    def _open(self, task: BatchTask) -> None:
        """Create the shared memory for the ring and the workers' progress, and start the processes."""
        data, spec = self.maker.dataset, self.maker.spec
        x, _ = data.batch(
            task.indices[:1], size=spec.size, augment="none", seed=self.maker.seed, epoch=task.epoch, train=False
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
        if self.maker.device is not None:
            self._registered = Registered(torch.from_numpy(shared), self.maker.device)
        for number in range(self.count):
            setup = WorkerSetup(
                handle=data.handle,
                size=spec.size,
                augment=self.maker.augment,
                seed=self.maker.seed,
                slow_decode_s=self.maker.slow_decode_s,
                side=data.side(spec.size) if isinstance(data, PictureDataset) else None,
                slots=self.slots,
                slot_bytes=slot_bytes,
                workers=self.count,
                number=number,
            )
            self._workers.append(WorkerProcess.started(setup, descriptor))
        os.close(descriptor)

    def finish(self, task: BatchTask) -> Batch:
        worker = self._workers[task.worker]
        who = f"worker {task.worker} (process {worker.process.pid})"
        try:
            while not worker.connection.poll(CHECK_S):
                if stuck := self.maker.stuck(task, self._progress[task.worker], who):
                    raise stuck
            made: MadeBatch = worker.connection.recv()
        except (EOFError, ConnectionError):
            raise self._death(task, who) from None
        task.ready_s = made.ready_s
        if made.error is not None:
            raise UserError(*made.error) if isinstance(made.error, tuple) else RuntimeError(made.error)
        self.maker.count(task)
        return self._batch(task, made)

    def _batch(self, task: BatchTask, made: MadeBatch) -> Batch:
        assert self._memory is not None
        data, memory = self.maker.dataset, self._memory[task.slot]
        if isinstance(data, PictureDataset):
            side = data.side(self.maker.spec.size)
            x = memory.reshape(-1, side, side, 3)[: len(task.indices)]
            made_here = torch.from_numpy(x).permute(0, 3, 1, 2), data.labels_of(task.indices)
            return pinned(made_here, self.maker.device)
        assert made.x is not None and made.y is not None
        shape, kind = made.x
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        x_here = torch.from_numpy(memory[:size].view(kind).reshape(shape))
        return pinned((x_here, torch.from_numpy(made.y)), self.maker.device)

    def _death(self, task: BatchTask, who: str) -> UserError:
        code = self._workers[task.worker].process.wait()
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        sample = int(self._progress[task.worker][0])
        if sample >= 0 and isinstance(self.maker.dataset, PictureDataset):
            return self.maker.dataset.pictures.unreadable(sample, f"{who} {ending} while working on it")
        return UserError(f"{who} {ending}", "loader", "see its messages above, and check what else runs on this node")

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()
            worker.process.kill()  # nothing has to be finished: it writes only to memory that is freed with it
        for worker in self._workers:
            worker.process.wait()
        self._workers.clear()
        if self._registered is not None:
            self._registered.close()
            self._registered = None


@dataclass
class WorkerProcess:
    process: subprocess.Popen[bytes]
    connection: Connection

    @classmethod
    def started(cls, setup: WorkerSetup, memory: int) -> WorkerProcess:
        """Start a worker process; it has its set-up and waits for batches to make."""
        ours, theirs = socket.socketpair()
        # Not by `-m`: its results would belong to `__main__`, and could not be unpickled here.
        program = "from scalestudy.data.load.worker_process import main; main()"
        command = [sys.executable, "-c", program, str(theirs.fileno()), str(memory), str(os.getpid())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), memory))
        theirs.close()
        connection = Connection(ours.detach())
        connection.send(setup)
        return cls(process, connection)
