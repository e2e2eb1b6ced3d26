"""A worker process of a loader: `main` with the descriptors of its connection and memory, and its parent, as arguments.

It imports torch only for data of the user's own, and for what the kernel does not decode and resize.
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
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.load.dataset import opened
from scalestudy.data.sources.samples import DatasetHandle, Transform
from scalestudy.errors import UserError
from scalestudy.measure.allocator import keep_freed_memory
from scalestudy.processes import die_with


class MadeBatch(NamedTuple):
    """A batch: x, which lies in its slot, and y."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    y: NDArray[Any]


Failure = tuple[str, str, str] | str
"""The parts of a UserError, or the traceback of another exception."""


class Work(NamedTuple):
    """What a worker is told at its start."""

    handle: DatasetHandle
    transform: Transform
    slow_decode_s: float
    slots: int
    slot_bytes: int


def shared_ring(memory: int, slots: int, slot_bytes: int) -> NDArray[np.uint8]:
    """uint8 [slots, slot_bytes] in a file of shared memory."""
    return np.frombuffer(mmap.mmap(memory, slots * slot_bytes), np.uint8).reshape(slots, slot_bytes)


def main() -> None:
    """Make batches until the loader's process closes the connection or ends; errors are sent, not raised."""
    connection, memory, parent = Connection(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent)  # a worker that waits sees its connection end; one that computes does not
    keep_freed_memory()
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with suppress(EOFError, ConnectionError):
        work: Work = connection.recv()
        ring, data = shared_ring(memory, work.slots, work.slot_bytes), None
        os.close(memory)
        # In a thread: otherwise this process and the loader's could each wait for the other to read a large message.
        threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
        while (task := tasks.get()) is not None:
            epoch, indices, slot = task
            made: MadeBatch | Failure
            try:
                if work.slow_decode_s:
                    time.sleep(work.slow_decode_s)
                data = data or opened(work.handle)
                made = _in_slot(ring[slot], *data.arrays(indices, epoch, work.transform, ring[slot]))
            except UserError as error:
                made = error.what, error.where, error.remedy
            except Exception:  # the rank raises it, with this traceback
                made = f"a loader's worker process failed:\n{traceback.format_exc()}"
            connection.send(made)


def _in_slot(slot: NDArray[np.uint8], x: NDArray[Any], y: NDArray[Any]) -> MadeBatch:
    """The batch, x copied into its slot unless it was made there."""
    if not np.may_share_memory(x, slot):
        copy = slot[: x.nbytes].view(x.dtype).reshape(x.shape)
        copy[:] = x
        x = copy
    return MadeBatch(x.shape, x.dtype.str, x.strides, y)


def _receive(connection: Connection, tasks: queue.SimpleQueue[Any]) -> None:
    with suppress(EOFError, ConnectionError):
        while True:
            tasks.put(connection.recv())
    tasks.put(None)
