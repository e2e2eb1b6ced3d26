"""Batches in the order of a plan, made ahead by threads; decoding and resizing release the interpreter lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from scalestudy.data.dataset import Dataset
from scalestudy.data.images import one_torch_thread
from scalestudy.data.pagecache import CacheLimit
from scalestudy.spec import run

Batch = tuple[torch.Tensor, torch.Tensor]


class Loader:
    """Iterate over batches (x, y) of `dataset`, as `plan` lists them: pairs of epoch and sample indices.

    At most `spec.workers * spec.prefetch` batches are made ahead of the one in use; with 0 workers each is made when asked for. An
    error while making a batch is raised where that batch is due. `train=False` shows held-out data as it is,
    without augmentation. Close it, or use it in a `with`, to end the threads.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: Iterable[tuple[int, NDArray[np.int64]]],
        spec: run.Loader,
        seed: int,
        slow_decode_s: float = 0.0,
        cache_limit: CacheLimit | None = None,
        *,
        train: bool = True,
    ) -> None:
        self.slow_decode = 0
        """How often the injected slow decode fired."""
        self.bytes = 0
        """Stored bytes that the batches made so far asked for."""
        self._dataset, self._plan, self._spec, self._seed = dataset, plan, spec, seed
        self._slow_decode_s, self._cache_limit, self._train = slow_decode_s, cache_limit, train
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        if spec.workers:
            # A thread that never set its number of torch threads inherits the last one set anywhere, which will be
            # the workers' 1: pin the caller's before.
            torch.set_num_threads(torch.get_num_threads())
            self._pool = ThreadPoolExecutor(spec.workers, "loader", initializer=torch.set_num_threads, initargs=(1,))

    def __iter__(self) -> Iterator[Batch]:
        assert not self._closed.is_set(), "the loader is closed"
        if self._pool is None:
            for epoch, indices in self._plan:
                with one_torch_thread():
                    batch = self._made(epoch, indices)
                yield batch
            return
        ahead: deque[Future[Batch]] = deque()
        for epoch, indices in self._plan:
            ahead.append(self._pool.submit(self._made, epoch, indices))
            if len(ahead) > self._spec.workers * self._spec.prefetch:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _made(self, epoch: int, indices: NDArray[np.int64]) -> Batch:
        if self._slow_decode_s:
            self._closed.wait(self._slow_decode_s)
        batch = self._dataset.batch(
            indices,
            size=self._spec.size,
            augment=self._spec.augment,
            seed=self._seed,
            epoch=epoch,
            train=self._train,
        )
        if self._cache_limit is not None:
            for path, offset, count in self._dataset.ranges(indices):
                self._cache_limit.touched(path, count, offset)
        with self._lock:
            self.bytes += self._dataset.bytes_of(indices)
            self.slow_decode += bool(self._slow_decode_s)
        return batch

    def close(self) -> None:
        """End the threads; batches being made are finished, those waiting are not."""
        self._closed.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
