"""Interval algebra: what runs while something else does, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]
"""float64 [n, 2]: begins and ends, in order and disjoint, as `union` makes them."""
NONE: Intervals = np.zeros((0, 2))


def union(*parts: Any) -> Intervals:
    """All time that any of the parts has; each is a list of [begin, end], in any order."""
    whole = np.concatenate([NONE, *(np.asarray(part, dtype=np.float64).reshape(-1, 2) for part in parts)])
    whole = whole[whole[:, 1] > whole[:, 0]]
    if not len(whole):
        return NONE
    whole = whole[np.argsort(whole[:, 0], kind="stable")]
    reached = np.maximum.accumulate(whole[:, 1])
    begins = np.flatnonzero(np.append(True, whole[1:, 0] > reached[:-1]))
    return np.column_stack([whole[begins, 0], reached[np.append(begins[1:] - 1, len(whole) - 1)]])


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """Time that both have."""
    return _where(one, other, np.logical_and)


def difference(one: Intervals, other: Intervals) -> Intervals:
    """Time that the first has and the second has not."""
    return _where(one, other, lambda first, second: first & ~second)


def total(intervals: Intervals) -> float:
    """Length of all intervals together."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def _where(one: Intervals, other: Intervals, keep: Callable[[Any, Any], Any]) -> Intervals:
    """The stretches between neighbouring ends that are kept, by whether each of the two covers them."""
    edges = np.unique(np.concatenate([one.ravel(), other.ravel()]))
    middles = (edges[1:] + edges[:-1]) / 2
    return union(np.column_stack([edges[:-1], edges[1:]])[keep(_covers(one, middles), _covers(other, middles))])


def _covers(intervals: Intervals, at: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool [len(at)]: whether an interval holds each moment."""
    last = np.searchsorted(intervals[:, 0], at, side="right") - 1
    ends = np.append(intervals[:, 1], -np.inf)  # before the first interval, `last` is -1
    covered: NDArray[np.bool_] = at < ends[last]
    return covered
