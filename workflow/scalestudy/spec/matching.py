"""Whether a value is the one that `where` of a figure, or `exclude` of a study, asks for."""

from __future__ import annotations

from typing import Any


def matches(value: Any, wanted: Any) -> bool:
    """Whether a value agrees with a wanted one.

    A list of wanted values stands for any of them. A name agrees with a map of that name alone, in both directions:
    `strategy: ring` and `strategy: {name: ring}` ask for the same.
    """
    if bool(value == wanted):
        return True
    if isinstance(wanted, list):
        return any(matches(value, one) for one in wanted)
    if isinstance(value, dict) and isinstance(wanted, str):
        return wanted in (value.get("name"), value.get("source"))
    if isinstance(value, str) and isinstance(wanted, dict):
        return wanted in ({"name": value}, {"source": value})
    return False
