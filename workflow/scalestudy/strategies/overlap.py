"""Any algorithm during backward: DDP hands over each full bucket, in the same order on every rank."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from scalestudy.strategies.algorithms import Sum


class Overlap:
    """A communication hook for DDP. On CPUs one thread does all exchanges; on GPUs a side stream (not yet run on one)."""

    def __init__(self, sum_over_ranks: Sum, ranks: int, device: torch.device) -> None:
        self.sum, self.ranks, self.device = sum_over_ranks, ranks, device
        self.buckets: SimpleQueue[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]] | None] = SimpleQueue()
        self.thread: Thread | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)
        else:
            # A daemon, because a rank that fails must not wait for an exchange that never ends.
            self.thread = Thread(target=self._exchange_all, name="exchange", daemon=True)
            self.thread.start()

    # torch refuses annotations that are strings on a hook.
    def hook(self, _state, bucket):  # type: ignore[no-untyped-def]
        """Start the mean of one bucket; the future holds the bucket when it is done."""
        if self.thread is None:
            return self._on_stream(bucket.buffer())
        future = torch.futures.Future()  # type: ignore[var-annotated]
        self.buckets.put((bucket.buffer(), future))
        return future

    def end(self) -> None:
        """No more buckets come."""
        if self.thread is not None:
            self.buckets.put(None)
            self.thread.join()

    def _exchange_all(self) -> None:
        while (work := self.buckets.get()) is not None:
            buffer, future = work
            try:
                self._mean(buffer)
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(buffer)

    def _on_stream(self, buffer: torch.Tensor) -> Any:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self._mean(buffer)
            future: Any = torch.futures.Future(devices=[self.device])
            future.set_result(buffer)
        return future

    def _mean(self, buffer: torch.Tensor) -> None:
        self.sum(buffer)
        buffer /= self.ranks
