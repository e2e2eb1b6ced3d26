"""Batches in the order of a plan, made ahead by threads or processes into a ring of reused buffers."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data.load.page_locked import Batch
from scalestudy.data.load.workers import BatchTask, Threads, Workers
from scalestudy.data.sources.samples import Dataset
from scalestudy.spec import run

if TYPE_CHECKING:
    from scalestudy.emulation.page_cache import CacheLimit

Delivered = tuple[int, NDArray[np.int64]]
"""Epoch and sample indices of one batch."""
Plan = Iterable[Delivered]


class Loader:
    """Iterate over batches (x, y) of `dataset`, as `plan` lists them: pairs of epoch and sample indices.

    x of images is uint8 [B, 3, side, side], channels last, in a buffer that is reused: it is valid until the next
    batch is requested. At most `spec.workers * spec.prefetch` batches are made ahead of the one in use; with 0 workers
    each is made when it is requested. An error while making a batch is raised where that batch is due, and so is the
    death of a worker. Close the loader, or use it in a `with`, to end the workers.

    The loader has no state to save: to resume at a batch, pass a plan that begins there; the number and kind of
    workers may differ.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        spec: run.Loader,
        seed: int,
        slow_decode_s: float = 0.0,
        cache_limit: CacheLimit | None = None,
    ) -> None:
        self._plan, self._feed = plan, dataset.feed
        kind: type[Workers] = Threads if spec.workers else Workers
        if spec.workers and spec.kind == "processes":
            from scalestudy.data.load.processes import Processes

            kind = Processes
        self._workers = kind(dataset, spec, seed, slow_decode_s, cache_limit)
        self.delivered: deque[Delivered] = deque()
        """The batches that were handed out, oldest first, until somebody takes them from here."""

    @property
    def slow_decode(self) -> int:
        """How often the injected slow decode fired."""
        return self._workers.slow_decode

    def __iter__(self) -> Iterator[Batch]:
        ahead: deque[tuple[Delivered, Callable[[], Batch]]] = deque()
        slots = itertools.cycle(range(self._workers.slots))
        for epoch, indices in self._planned():
            ahead.append(((epoch, indices), self._workers.start(BatchTask(epoch, indices, next(slots)))))
            if len(ahead) > self._workers.ahead:
                yield self._taken(*ahead.popleft())
        while ahead:
            yield self._taken(*ahead.popleft())

    def _planned(self) -> Plan:
        """The plan; a stream gets each epoch's samples when the first batch of them is due to be made."""
        if self._feed is None:
            yield from self._plan
            return
        for epoch, group in itertools.groupby(self._plan, key=lambda item: item[0]):
            batches = [indices for _, indices in group]
            ahead = self._workers.slots * max(map(len, batches))
            self._feed.follow(epoch, np.concatenate(batches), ahead)
            for indices in batches:
                yield epoch, indices

    def _taken(self, what: Delivered, wait: Callable[[], Batch]) -> Batch:
        batch = wait()
        self.delivered.append(what)
        return batch

    def close(self) -> None:
        """End the workers."""
        if self._feed is not None:
            self._feed.leave()
        self._workers.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches on a GPU, each copied ahead of its use on a separate stream; elsewhere unchanged.

    A batch's buffer returns to the loader only when its copy has ended.
    """
    if device.type != "cuda":
        yield from batches
        return
    side = torch.cuda.Stream(device)
    waiting: tuple[Batch, torch.cuda.Event] | None = None
    for x, y in batches:
        with torch.cuda.stream(side):
            copied = (x.to(device, non_blocking=True), y.to(device, non_blocking=True))
            done = side.record_event()
        if waiting is not None:
            yield _used_here(*waiting)
        waiting = (copied, done)
        done.synchronize()
    if waiting is not None:
        yield _used_here(*waiting)


def _used_here(batch: Batch, done: torch.cuda.Event) -> Batch:
    """A batch that the current stream may use: it waits for the copy, and the memory is not freed earlier."""
    current = torch.cuda.current_stream()
    current.wait_event(done)
    for tensor in batch:
        tensor.record_stream(current)
    return batch
