"""The largest batch of a rank that fits into memory, found by really training with it: doubling, then bisection."""

from __future__ import annotations

import bisect
import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch._dynamo  # the optimisers import it on first use: once here, and not in every child and its memory

from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.errors import UserError
from scalestudy.measure.allocator import keep_freed_memory
from scalestudy.measure.memory import MemoryLimit
from scalestudy.measure.system import sizes
from scalestudy.spec.run import Batch
from scalestudy.strategies.catalogue import Single
from scalestudy.training.job import Job
from scalestudy.training.replica import Replica
from scalestudy.training.training_data import TrainingData
from scalestudy.training.world import join

STEPS = 2
"""From the second step on the optimiser's state is there too."""
MAX_BATCH = 1 << 20
EXACT_BELOW = 64
HELD = 2
"""Batches that the loader holds on a GPU (data/load/loader.py: on_device)."""
DISTINCT = 16
"""Samples that are read; a batch repeats them."""


def largest_batch(fits: Callable[[int], bool]) -> int:
    """The largest number up to MAX_BATCH that fits, where all smaller ones fit as well; 0 where not even 1 does.

    From EXACT_BELOW on it is found to within 8 samples or 1 %, whichever is larger: a trial takes seconds.
    """
    bad = 1
    while bad <= MAX_BATCH and fits(bad):
        bad *= 2
    good = bad // 2
    numbers = range(good, min(bad, MAX_BATCH + 1), 1 if good < EXACT_BELOW else max(8, good // 100))
    return numbers[bisect.bisect_left(numbers, True, 1, key=lambda batch: not fits(batch)) - 1]


def search(job: Job, limit_bytes: int | None, show: Callable[[int, int | str], None] = lambda *_: None) -> int:
    """Search the largest batch of one rank of the job. Nothing is exchanged.

    `show` is called with each batch that was tried and its peak of memory above that of a process with torch and the data
    open, bytes; or why a step failed. Not every library reports exhausted memory: a batch of which a step fails, for
    whatever reason, did not fit.

    On a CPU a process may take `limit_bytes` beyond its memory with open data. On a GPU its memory is the limit,
    or `limit_bytes` of it. Raises UserError where a step fails with a single sample, and with two.
    """
    data, answers = open_dataset(job.manifest, "train"), dict[int, int | str]()

    def fits(batch: int) -> bool:
        if batch not in answers:
            answers[batch] = _answer(job, data, limit_bytes, batch)
            show(batch, answers[batch])
        # BatchNorm cannot be trained on one value per channel: what fails with one sample may work with two.
        return isinstance(answers[batch], int) or (batch == 1 and fits(2))

    batch_size = largest_batch(fits)
    if batch_size == 0:
        what = f"no step could be made with one sample, or with two: {answers[1]}"
        raise UserError(what, "largest-batch", "allow more memory, or use a smaller model or smaller images")
    return batch_size


def _answer(job: Job, data: Dataset, limit_bytes: int | None, batch: int) -> int | str:
    """Train in a separate process, since a failed trial must leave nothing behind; the peak, or why it failed."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(sending, job, data, limit_bytes, batch))
    child.start()
    sending.close()
    try:
        answer: int | str = receiving.recv()
    except EOFError:  # the kernel ends a process whose memory it cannot provide by SIGKILL
        child.join()
        return f"its process ended with status {child.exitcode}"
    child.join()
    return answer


def _child(answer: Connection, job: Job, data: Dataset, limit_bytes: int | None, batch: int) -> None:
    """Send the peak of memory, or the first line of an error."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # the process that started it says why it ends
    keep_freed_memory()  # as ranks do
    try:
        answer.send(_train(job, data, limit_bytes, batch))
    except Exception as error:
        answer.send((str(error) or type(error).__name__).splitlines()[0])
    answer.close()
    os._exit(0)


def _train(job: Job, data: Dataset, limit_bytes: int | None, batch: int) -> int:
    """Make STEPS steps on one batch, a few samples repeated; the peak of memory above the start, bytes."""
    changes = {"ranks": 1, "strategy": Single(name="single"), "batch": Batch(per_rank=batch)}
    job = dataclasses.replace(job, spec=job.spec.model_copy(update=changes))
    world = join(job, 0)
    device = world.device
    before = sizes("status")
    if limit_bytes is not None:
        MemoryLimit(device, limit_bytes).__enter__()  # for the rest of this process
    replica = Replica(job, world, TrainingData(job, 0, data, data))
    few = np.arange(min(batch, data.samples, DISTINCT))
    x, y = data.batch(few, size=job.spec.loader.size, augment="none", seed=0, epoch=0)
    repeated = torch.arange(batch) % len(few)
    x, y = x[repeated], y[repeated]
    # While a rank trains on one batch, its loader holds that one and the next on the device, as they are stored.
    held = [(x.to(device), y.to(device)) for _ in range(HELD)] if device.type == "cuda" else []
    x, y = replica.inputs(x), y.to(device)
    for _ in range(STEPS):
        replica.forward_backward(x, y)
        replica.update()
    held.clear()
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    now = sizes("status")
    code = now["RssFile"] - before["RssFile"]  # pages of libraries, which no limit counts
    return now["VmHWM"] - before["VmRSS"] - code
