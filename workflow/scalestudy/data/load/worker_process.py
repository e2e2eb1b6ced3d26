"""A worker process of a loader: `main` with the descriptors of its connection and memory, and its parent, as arguments.

It imports torch only where the data needs it, or an image that the kernel does not decode.
"""

from __future__ import annotations

import mmap
import os
import queue
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.load.image_reader import NO_SAMPLE, UNWATCHED, ImageReader
from scalestudy.data.load.readers import DatasetHandle
from scalestudy.data.manifest import read_manifest
from scalestudy.errors import UserError
from scalestudy.measure.allocator import keep_freed_memory
from scalestudy.processes import die_with


class MadeBatch(NamedTuple):
    """The outcome of one batch: an error, or what does not lie in its slot."""

    error: tuple[str, str, str] | str | None = None
    """The parts of a UserError, or the traceback of another exception."""
    x: tuple[tuple[int, ...], str] | None = None
    """Shape and type of what lies in the slot, where it is not images."""
    y: NDArray[Any] | None = None


def shared_arrays(memory: int, workers: int, slots: int, slot_bytes: int) -> list[NDArray[Any]]:
    """A file of shared memory, and in it progress, int64 [workers, 2], and a ring of batches, uint8 [slots, slot_bytes]."""
    head = workers * 16
    shared = np.frombuffer(mmap.mmap(memory, head + slots * slot_bytes), np.uint8)
    return [shared, shared[:head].view(np.int64).reshape(workers, 2), shared[head:].reshape(slots, slot_bytes)]


@dataclass
class Worker:
    """Makes batches until its connection ends; plain data until it has made the first one."""

    handle: DatasetHandle
    size: int | None
    augment: str
    seed: int
    slow_decode_s: float
    side: int | None
    """Height and width of images; None for other data."""
    shared: tuple[int, int, int]
    """Workers, slots and bytes of a slot of the shared memory."""
    number: int
    pictures: ImageReader | None = None
    dataset: Any = None

    def attach(self, memory: int) -> None:
        """Find the worker's progress and the ring in the shared memory."""
        _, progress, self.ring = shared_arrays(memory, *self.shared)
        self.progress = progress[self.number]

    def _open(self) -> None:
        """Open the data as the process of the loader did."""
        if self.side is not None:
            self.pictures = ImageReader(self.handle, read_manifest(self.handle.manifest))
        else:
            import torch

            from scalestudy.data.load.dataset import opened

            torch.set_num_threads(1)
            self.dataset = opened(self.handle)
        self.progress[0] = NO_SAMPLE

    def make(self, epoch: int, indices: NDArray[np.int64], slot: int) -> MadeBatch:
        """Make one batch; errors are returned, not raised."""
        try:
            if self.pictures is None and self.dataset is None:
                self._open()
            if self.slow_decode_s:
                self.progress[0] = UNWATCHED
                time.sleep(self.slow_decode_s)
            made = self._made(epoch, indices, slot)
        except UserError as error:
            return MadeBatch((error.what, error.where, error.remedy))
        except Exception:
            return MadeBatch(f"a loader's worker process failed:\n{traceback.format_exc()}")
        finally:
            self.progress[0] = NO_SAMPLE
        return MadeBatch(None, *made)

    def _made(self, epoch: int, indices: NDArray[np.int64], slot: int) -> tuple[Any, Any]:
        options: dict[str, Any] = {"augment": self.augment, "seed": self.seed, "epoch": epoch}
        if self.pictures is not None and self.side is not None:
            out = self.ring[slot].reshape(-1, self.side, self.side, 3)[: len(indices)]
            self.pictures.make(indices, out, **options, progress=self.progress)
            return None, None
        self.progress[0] = UNWATCHED
        x, y = self.dataset.batch(indices, size=self.size, **options)
        array = x.contiguous().numpy()
        self.ring[slot][: array.nbytes] = array.reshape(-1).view(np.uint8)
        return (array.shape, array.dtype.str), y.numpy()


def main() -> None:
    """Make batches until the loader's process closes the connection or ends."""
    connection, memory, parent = Connection(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent)  # a worker that waits sees its connection end; one that hangs or computes does not
    keep_freed_memory()
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with suppress(EOFError, ConnectionError):
        worker: Worker = connection.recv()
        worker.attach(memory)
        os.close(memory)
        # In a thread: otherwise this process and the loader's could each wait for the other to read a large message.
        threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
        while (task := tasks.get()) is not None:
            connection.send(worker.make(*task))


def _receive(connection: Connection, tasks: queue.SimpleQueue[Any]) -> None:
    with suppress(EOFError, ConnectionError):
        while True:
            tasks.put(connection.recv())
    tasks.put(None)
