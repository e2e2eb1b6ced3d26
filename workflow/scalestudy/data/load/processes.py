"""Worker processes that make a loader's batches."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch

from scalestudy.data.load.page_locked import Batch, Registered, pinned
from scalestudy.data.load.worker_process import Failure, MadeBatch, Work, shared_ring
from scalestudy.data.load.workers import BatchTask, Workers
from scalestudy.errors import UserError


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
            task.wait(connection.poll)
            made: MadeBatch | Failure = connection.recv()
        except (EOFError, ConnectionError):
            code = process.wait()
            ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            what = f"worker {number} (process {process.pid}) {ending} at {task}"
            raise UserError(what, "loader", "see its messages above, and check what else runs on this node") from None
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
