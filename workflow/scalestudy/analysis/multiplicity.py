"""Several tests that are judged together."""

from __future__ import annotations

from collections.abc import Iterable


def holm(ps: Iterable[float]) -> list[float]:
    """p-values adjusted for being judged together, in the order given: in ascending order p·(m - k), never falling, at most 1.

    Compared with alpha, they keep the probability of any false decision below alpha, whatever their dependence
    (Holm, Scand. J. Statist. 6 (1979) 65).
    """
    found = list(ps)
    order = sorted(range(len(found)), key=lambda index: found[index])
    adjusted, largest = [0.0] * len(found), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, found[index] * (len(found) - rank)))
        adjusted[index] = largest
    return adjusted
