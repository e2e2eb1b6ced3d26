"""Samples fetched in the order in which they are stored, ahead of their use, and never written to a disk."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalestudy.data.load.readers import IndexedReader, Indices

BLOCK_BYTES = 4 << 20
"""Bytes of one request: large enough that a latency of tens of milliseconds hardly counts."""
MAX_GAP_BYTES = 64 << 10
"""Largest gap between two samples fetched in one request (headers of a tar, samples not needed)."""
CONNECTIONS = 4


class StreamReader:
    """`follow` an epoch's samples, then `read` each of them once; samples not followed are read by themselves."""

    def __init__(self, storage: IndexedReader) -> None:
        self._storage = storage
        self._feeds: dict[int, Feed] = {}

    def follow(self, epoch: int, coming: Indices, ahead: int) -> None:
        """Begin to fetch the samples of this epoch, which will be read in this order.

        At any time, at most the next `ahead` of them are requested.
        """
        for old in [number for number, feed in self._feeds.items() if not feed.left or number == epoch]:
            self._feeds.pop(old).close()
        self._feeds[epoch] = Feed(self._storage, coming, ahead)

    def read(self, sample: int, epoch: int) -> Any:
        """The bytes of one sample, as of Storage."""
        feed = self._feeds.get(epoch)
        return self._storage.read(sample, epoch) if feed is None else feed.take(sample)

    def leave(self) -> None:
        """Stop fetching; readers that wait for a sample get an error."""
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()


@dataclass
class _Block:
    """One request: a range of a file, and the samples in it with their offsets and sizes."""

    name: str
    start: int
    size: int
    first_use: int
    samples: list[tuple[int, int, int]]


class Feed:
    """Fetches the samples of one epoch.

    A request is made when one of its samples will be used soon: memory holds the shuffle buffer, the batches being made
    and a request per connection, whatever the size of the data.
    """

    def __init__(self, storage: IndexedReader, coming: Indices, ahead: int) -> None:
        self._storage, self._ahead = storage, ahead
        self._turn = threading.Condition()
        self._there: dict[int, Any] = {}  # a sample's bytes, or why it cannot be read
        self.left = len(coming)
        """Samples that have not been taken."""
        samples, first_use = np.unique(coming, return_index=True)
        self._used = self._next = 0
        self._closed = False
        self._blocks = _blocks(storage, samples, first_use)
        for number in range(min(CONNECTIONS, len(self._blocks))):
            threading.Thread(target=self._bring, name=f"loader stream {number}", daemon=True).start()

    def take(self, sample: int) -> Any:
        """Wait for the bytes of a sample."""
        with self._turn:
            self._turn.wait_for(lambda: sample in self._there or self._closed)
            if self._closed:
                raise OSError("the stream was closed")
            outcome = self._there.pop(sample)
            if isinstance(outcome, Exception):
                raise outcome
            self.left -= 1
            self._used += 1
            if self._is_due():  # not for each sample: threads that wake up and wait again took a third of the CPU time
                self._turn.notify_all()
            return outcome

    def _bring(self) -> None:
        while (block := self._due()) is not None:
            try:
                buffer = memoryview(bytearray(block.size))
                self._storage.fetch(block.name, block.start, buffer)
            except Exception as error:
                self._one_by_one(block, error)
                continue
            # Copies: otherwise the last sample of a request would keep all of it in memory.
            self._arrived({sample: bytes(buffer[at : at + length]) for sample, at, length in block.samples})

    def _one_by_one(self, block: _Block, error: Exception) -> None:
        """Read the samples of a failed request one by one; those that cannot be read get the error."""
        for sample, _, _ in block.samples:
            try:
                if isinstance(error, OSError) and not self._storage.store.local:
                    raise error  # a server that is gone: trying again for each sample would take minutes
                self._arrived({sample: self._storage.read(sample, 0)})
            except Exception as own:
                self._arrived({sample: own})

    def _arrived(self, samples: dict[int, Any]) -> None:
        with self._turn:
            self._there.update(samples)
            self._turn.notify_all()

    def _due(self) -> _Block | None:
        """Wait until the next request is due; None when there is none left."""
        with self._turn:
            while True:
                if self._closed or self._next == len(self._blocks):
                    return None
                if self._is_due():
                    self._next += 1
                    return self._blocks[self._next - 1]
                self._turn.wait()

    def _is_due(self) -> bool:
        """Whether one of the samples of the next request will be used soon."""
        return self._next < len(self._blocks) and self._blocks[self._next].first_use < self._used + self._ahead

    def close(self) -> None:
        """End the threads; a request under way is finished first."""
        with self._turn:
            self._closed = True
            self._there.clear()
            self._turn.notify_all()


def _blocks(storage: IndexedReader, samples: Indices, first_use: Indices) -> list[_Block]:
    """Requests in the order in which they are due: each when the first of its samples is.

    Samples are sorted by where they lie; neighbours are fetched together.
    """
    starts = storage.starts[samples]
    numbers: dict[str, int] = {}
    files = np.array([numbers.setdefault(storage.name(sample), len(numbers)) for sample in samples.tolist()], np.int64)
    names = list(numbers)
    blocks: list[_Block] = []
    for k in np.lexsort((starts, files)).tolist():
        sample, name, start, size = int(samples[k]), names[files[k]], int(starts[k]), int(storage.sizes[samples[k]])
        block = blocks[-1] if blocks else None
        if (
            block is None
            or block.name != name
            or start - (block.start + block.size) > MAX_GAP_BYTES
            or start + size - block.start > BLOCK_BYTES
        ):
            block = _Block(name, start, 0, int(first_use[k]), [])
            blocks.append(block)
        block.samples.append((sample, start - block.start, size))
        block.size = start + size - block.start
        block.first_use = min(block.first_use, int(first_use[k]))
    return sorted(blocks, key=lambda block: block.first_use)
