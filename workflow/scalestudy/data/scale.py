"""How many training samples `data.scale` requests, and which: prefixes of one stratified order, then repeats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scalestudy.data import counter_rng
from scalestudy.spec.sizes import size_in_bytes


def wanted_samples(scale: float | str, samples: int, sample_bytes: float) -> int:
    """Number of training samples, at least one.

    `scale` is a factor on `samples`, or a size such as `64 MiB` for samples that take `sample_bytes` each as stored.
    """
    if not isinstance(scale, str):
        return max(1, round(samples * scale))
    assert "memory" not in scale, "a size relative to memory is turned into bytes when a study is expanded"
    return max(1, round(size_in_bytes(scale, 0) / sample_bytes))


def stratified_order(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """An order of all samples of which every prefix holds the classes in their proportions, within one of each.

    labels: [samples]. Samples of a class stand in random order, spread evenly over the whole.
    """
    shuffled = counter_rng.permutation(len(labels), counter_rng.SUBSET)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, starts, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    position = np.arange(len(labels)) - np.repeat(starts, counts)
    return by_class[np.argsort((position + 0.5) / np.repeat(counts, counts), kind="stable")]


def chosen(labels: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """[count] which sample each of the `count` samples is: all of them as often as they fit, then a subset.

    labels: [samples], or [samples, classes] for multilabel data, which is not stratified.
    """
    whole, rest = divmod(count, len(labels))
    strata = labels if labels.ndim == 1 else np.zeros(len(labels), np.int64)
    parts = [np.arange(len(labels))] * whole + ([stratified_order(strata)[:rest]] if rest else [])
    return np.concatenate(parts)
