"""What similar runs say about another: a set-up time, and a time per sample that a rank trains on, fitted to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[float, float]

LEAST, MOST = 0.8, 1.5
"""How far a run may lie from what its nearest neighbours say, at no distance."""
GEOMETRY_FACTOR = 4.0
SIZE_FACTOR = 100.0
"""The ends move outwards once more per so large a factor in ranks or batch per rank, and in samples beyond those seen:
assumptions, which `plan --actual` holds against what runs took."""


@dataclass(frozen=True)
class EndedRun:
    """A run that ended: ranks, samples per step of a rank, samples of a rank in all, seconds; of these the part that
    does not grow with the samples, where it was measured."""

    ranks: int
    rank_batch: int
    rank_samples: float
    seconds: float
    set_up_s: float | None = None


Groups = dict[tuple[int, int], list[EndedRun]]
"""By ranks and batch per rank."""


def seconds_of(ranks: int, rank_batch: int, rank_samples: float, seen: Sequence[EndedRun]) -> Span:
    """5th and 95th percentile of the seconds of a run with this geometry and so many samples per rank, from at least
    one other."""
    return seconds_among(ranks, rank_batch, rank_samples, by_geometry(seen))


def by_geometry(seen: Iterable[EndedRun]) -> Groups:
    """Runs by their ranks and batch per rank: a large study has many runs of few geometries."""
    groups: Groups = {}
    for one in seen:
        groups.setdefault((one.ranks, one.rank_batch), []).append(one)
    return groups


def seconds_among(ranks: int, rank_batch: int, rank_samples: float, groups: Groups) -> Span:
    """As `seconds_of`, from runs that are grouped."""
    distance = {key: abs(math.log(ranks / key[0])) + abs(math.log(rank_batch / key[1])) for key in groups}
    nearest = min(distance.values())
    near = [one for key, members in groups.items() if distance[key] <= nearest + 1e-9 for one in members]
    low, high = _at(rank_samples, near)
    beyond = min(abs(math.log(rank_samples / one.rank_samples)) for one in near)
    power = 1 + nearest / math.log(GEOMETRY_FACTOR) + beyond / math.log(SIZE_FACTOR)
    return low * LEAST**power, high * MOST**power


def _at(samples: float, near: Sequence[EndedRun]) -> Span:
    """Least and most seconds that the runs give for so many samples per rank.

    Each run whose set-up time is known gives a line of its own. Of the others at least two different sizes give one
    line together; a single size leaves open which part of the time is set-up: from none to all.
    """
    found: list[float] = []
    plain = []
    for one in near:
        if one.set_up_s is None:
            plain.append(one)
        else:
            found.append(one.set_up_s + (one.seconds - one.set_up_s) * samples / one.rank_samples)
    if len({one.rank_samples for one in plain}) > 1:
        set_up_s, per_sample_s = fitted([(one.rank_samples, one.seconds) for one in plain])
        line = [set_up_s + per_sample_s * one.rank_samples for one in plain]
        ratios = [one.seconds / on_line for one, on_line in zip(plain, line, strict=True)]
        found += [ratio * (set_up_s + per_sample_s * samples) for ratio in (min(ratios), max(ratios))]
    elif not found:
        found += [part for one in plain for part in (one.seconds, one.seconds * samples / one.rank_samples)]
    return min(found), max(found)


def fitted(points: Sequence[tuple[float, float]]) -> Span:
    """Intercept and slope, neither negative, of the line through (x, y) with the least squares of relative errors."""
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    across = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / across
    if slope < 0:
        return mean_y, 0.0
    if mean_y - slope * mean_x < 0:
        both = sum(w * x * y for w, (x, y) in zip(weights, points, strict=True))
        return 0.0, both / sum(w * x * x for w, (x, _) in zip(weights, points, strict=True))
    return mean_y - slope * mean_x, slope
