"""The largest batch of a rank that fits into memory, found by really training with it: doubling, then bisection."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the optimisers import it on first use: once here, and not in every child and its memory

from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.data.load.normalise import normalise
from scalestudy.errors import UserError
from scalestudy.spec.run import Batch
from scalestudy.strategies.catalogue import Single
from scalestudy.training.job import Job
from scalestudy.training.loop import Rank

STEPS = 2
"""From the second step on the optimiser's state is there too."""
MOST = 1 << 20
DISTINCT = 16
"""Samples that are read; a batch repeats them."""


@dataclass(frozen=True)
class Attempt:
    """One batch that was tried."""

    batch: int
    fits: bool
    peak_bytes: int | None
    """Most memory above that of a process with torch and the data open; None where it did not fit."""


def largest_batch(fits: Callable[[int], bool], most: int = MOST) -> int:
    """The largest number up to `most` that fits, where all smaller ones fit as well; 0 where not even 1 does."""
    good, bad = 0, 1
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def search(job: Job, limit_bytes: int | None) -> tuple[int, list[Attempt]]:
    """The largest batch of one rank of the job, and what was tried, in order. Nothing is exchanged.

    On a CPU a process may take `limit_bytes` beyond what it has when the data is open. On a GPU its memory is the limit,
    or `limit_bytes` of it. Raises UserError where a single sample does not fit, or where training fails otherwise.
    """
    data, tried = open_dataset(job.manifest, "train"), []

    def fits(batch: int) -> bool:
        tried.append(_in_a_process(job, data, limit_bytes, batch))
        return tried[-1].fits

    found = largest_batch(fits)
    if found == 0:
        what = "not even a batch of one sample fits into the memory"
        raise UserError(what, "largest-batch", "allow more memory, or use a smaller model or smaller images")
    return found, tried


def _in_a_process(job: Job, data: Dataset, limit_bytes: int | None, batch: int) -> Attempt:
    """Train in a process of its own: what did not fit leaves nothing behind.

    What fails under the limit and works without it did not fit: not every library says that memory was short.
    """
    answer = _answer_of_child(job, data, limit_bytes, batch)
    if "error" in answer and limit_bytes is not None and "error" not in _answer_of_child(job, data, None, batch):
        answer = {}
    if "error" in answer:
        raise UserError(f"a step with {batch} samples failed: {answer['error']}", "model")
    peak = answer.get("peak_bytes")
    return Attempt(batch, peak is not None, peak)


def _answer_of_child(job: Job, data: Dataset, limit_bytes: int | None, batch: int) -> dict[str, Any]:
    """Its peak of memory, or an error; nothing where it was killed, or said that memory was short."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(sending, job, data, limit_bytes, batch))
    child.start()
    sending.close()
    try:
        answer: dict[str, Any] = receiving.recv()
    except EOFError:
        answer = {}  # killed by the kernel for its memory
    child.join()
    return answer


def _child(answer: Connection, job: Job, data: Dataset, limit_bytes: int | None, batch: int) -> None:
    try:
        answer.send({"peak_bytes": _train(job, data, limit_bytes, batch)})
    except (torch.OutOfMemoryError, MemoryError):
        answer.send({})
    except RuntimeError as error:
        answer.send({} if "can't allocate memory" in str(error) else {"error": str(error).splitlines()[0]})
    except UserError as error:
        answer.send({"error": str(error)})
    answer.close()
    os._exit(0)


def _train(job: Job, data: Dataset, limit_bytes: int | None, batch: int) -> int:
    """Make STEPS steps on one batch, a few samples repeated; the peak of memory above the start, bytes."""
    changes = {"ranks": 1, "strategy": Single(name="single"), "batch": Batch(per_rank=batch)}
    rank = Rank(dataclasses.replace(job, spec=job.spec.model_copy(update=changes)), 0)
    device = rank.world.device
    before, code_before = _status_bytes("VmRSS"), _status_bytes("RssFile")
    if device.type == "cuda" and limit_bytes is not None:
        torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.get_device_properties(device).total_memory)
    elif limit_bytes is not None:
        most = _status_bytes("VmData") + limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    rank.data = data
    rank.assemble()
    few = np.arange(min(batch, data.samples, DISTINCT))
    x, y = data.batch(few, size=job.spec.loader.size, augment="none", seed=0, epoch=0, train=True)
    repeated = torch.arange(batch) % len(few)
    x, y = rank.laid_out(normalise(x[repeated], rank.dtype, device)), y[repeated].to(device)
    for _ in range(STEPS):
        rank.forward_backward(x, y)
        rank.update()
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    code = _status_bytes("RssFile") - code_before  # pages of libraries, which no limit counts
    return _status_bytes("VmHWM") - before - code


def _status_bytes(name: str) -> int:
    """A size from /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
