"""Samples that are files, or ranges of shards, listed by an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.load.readers import Indices, Reader, ThreadLocalBuffer
from scalestudy.data.stores import Store


class IndexedReader(Reader):
    """Reads each sample by itself, in any order."""

    def __init__(
        self,
        store: Store,
        name: Callable[[int], str],
        sizes: NDArray[np.int64],
        starts: NDArray[np.int64] | None,
        names: list[str] | None = None,
    ) -> None:
        """`name(sample)` is its file; `starts` None: each sample is a whole file; `names`: the files of all samples."""
        self.store, self.name, self.sizes, self.starts = store, name, sizes, starts
        self._names, self._buffer = names, ThreadLocalBuffer()

    def read(self, sample: int, epoch: int) -> Any:
        out = self._buffer(int(self.sizes[sample]))
        self.store.read_into(self.name(sample), 0 if self.starts is None else int(self.starts[sample]), out)
        return out

    def where(self, sample: int) -> tuple[str, str]:
        if self.starts is None:
            return self.store.path(self.name(sample)), ""
        start = int(self.starts[sample])
        return self.store.path(self.name(sample)), f"bytes {start} to {start + int(self.sizes[sample])}"

    def ranges(self, indices: Indices) -> Iterator[tuple[str, int, int]]:
        if not self.store.local:
            return
        starts = np.zeros(len(indices), np.int64) if self.starts is None else self.starts[indices]
        for sample, start, size in zip(indices.tolist(), starts.tolist(), self.sizes[indices].tolist(), strict=True):
            yield self.store.path(self.name(sample)), start, size

    @property
    def files(self) -> list[Path]:
        if not self.store.local:
            return []
        names = self._names if self._names is not None else [self.name(sample) for sample in range(len(self.sizes))]
        return [Path(self.store.path(name)) for name in names]

    def close(self) -> None:
        self.store.close()
