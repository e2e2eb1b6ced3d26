"""Random tensors, made while they are read: what a loader costs when the data costs nothing."""

from __future__ import annotations

import json
import math
import time

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.data.catalogue import Synthetic
from scalestudy.data.manifest import Manifest, Split
from scalestudy.data.sources import Generated
from scalestudy.data.sources.samples import ArrayBatch, TensorDataset
from scalestudy.spec.config import Site

POOL_BYTES = 1 << 20
"""A sample is a window into one pool of random bytes, this much longer than a sample."""
LABELS_PER_SAMPLE = 3
"""Mean number of labels of a multilabel sample."""


def provide(spec: Synthetic, site: Site) -> Generated:
    """As many samples of that shape as requested, and a tenth as many held out."""
    samples: dict[Split, int] = {"train": spec.samples, "test": max(1, spec.samples // 10)}
    return Generated(samples, spec.shape, math.prod(spec.shape), spec.classes, spec.task)


class SyntheticDataset(TensorDataset):
    """uint8 [B, *shape], a function of the sample's number alone.

    Bytes are uniform; samples overlap in the pool, so they are distinct but not independent. Labels are uniform;
    nothing can be learnt. A batch costs a copy of its bytes, which come out of the processor's cache.
    """

    def __init__(self, manifest: Manifest, split: Split) -> None:
        super().__init__(manifest, split)
        self._spec = Synthetic.model_validate_json(json.dumps(manifest.spec))
        self._side, self._sample_bytes = ("train", "test").index(split), math.prod(self._spec.shape)
        words = counter_rng.hashed(counter_rng.POOL, np.arange(-(-(self._sample_bytes + POOL_BYTES) // 8)))
        self._pool = words.view(np.uint8)

    def gather(self, indices: NDArray[np.int64]) -> ArrayBatch:
        x = np.empty((len(indices), self._sample_bytes), np.uint8)
        starts = counter_rng.hashed(counter_rng.VALUES, self._side, indices) % np.uint64(POOL_BYTES)
        for row, start in enumerate(starts.tolist()):
            x[row] = self._pool[start : start + self._sample_bytes]
            if self._spec.latency_s:
                time.sleep(self._spec.latency_s)
        return x.reshape(len(indices), *self._spec.shape), self._labels_of(indices)

    def _labels_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64] | NDArray[np.float32]:
        classes = self._spec.classes
        if self._spec.task == "classification":
            drawn = counter_rng.hashed(counter_rng.LABELS, self._side, indices) % np.uint64(classes)
            return drawn.astype(np.int64)
        share = min(0.5, LABELS_PER_SAMPLE / classes)
        drawn_labels = counter_rng.uniforms(classes, counter_rng.LABELS, self._side, indices) < share
        return drawn_labels.astype(np.float32)


open_split = SyntheticDataset
