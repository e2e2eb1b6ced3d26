"""Random numbers that depend on their keys alone: no state, so no worker, rank or library version changes them.

The hash is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014), chained over the keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

AUGMENT, ORDER, SUBSET, POOL, PICTURE, VALUES, LABELS, SHARD, BUFFER, SEEN = range(10)
"""First key of each use, so that no two uses draw the same numbers."""

_GOLDEN, _FIRST, _SECOND = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def hashed(*keys: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    """One 64-bit number for each combination of keys (broadcast against each other; at least one dimension).

    Distinct last keys give distinct numbers where all other keys are equal.
    """
    state = np.zeros(1, np.uint64)
    for key in keys:
        state = state + np.atleast_1d(np.asarray(key)).astype(np.uint64) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _FIRST
        state = (state ^ (state >> np.uint64(27))) * _SECOND
        state = state ^ (state >> np.uint64(31))
    return state


def uniforms(count: int, *keys: int | NDArray[np.integer]) -> NDArray[np.float64]:
    """[rows, count] numbers in [0, 1) for `rows` combinations of keys."""
    columns = [key[:, None] if isinstance(key, np.ndarray) else key for key in keys]
    return (hashed(*columns, np.arange(count)) >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def permutation(samples: int, *keys: int) -> NDArray[np.int64]:
    """The numbers below `samples` in random order."""
    return np.argsort(hashed(*keys, np.arange(samples)), kind="stable")
