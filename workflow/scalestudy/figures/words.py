"""How columns, values and quantities are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalestudy.spec.labels import number, value_text
from scalestudy.spec.study import Study

TIME = ((1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
BYTES = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB"))


def friendly(unit: str, values: Iterable[float]) -> tuple[float, str]:
    """A factor to divide by and the unit that makes most of `values` easy to read: 1 to some hundreds."""
    finite = sorted(abs(value) for value in values if math.isfinite(value) and value)
    if not finite:
        return 1.0, unit
    middle = finite[len(finite) // 2]
    if unit == "s":
        # A unit is left for the next where two of the next are reached: 119 s, 2 min.
        return next(
            step for step in reversed(TIME) if middle >= step[0] * (1.0 if step[0] <= 1.0 else 2.0) or step is TIME[0]
        )
    if unit in ("B", "MiB"):
        base = 1.0 if unit == "B" else 2.0**20
        factor, name = next(step for step in reversed(BYTES) if middle * base >= step[0] or step is BYTES[0])
        return factor / base, name
    return 1.0, unit


def with_unit(label: str, unit: str) -> str:
    """`Training time (h)`; a label without unit stands alone."""
    return f"{label} ({unit})" if unit else label


def quantity(value: float, unit: str) -> str:
    """A number in the unit that suits it: `4.2 min`."""
    factor, name = friendly(unit, [value])
    return f"{number(value / factor)} {name}".strip()


def counted(n: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{n} {noun}" + ("" if n == 1 else "s")


def listed(items: Iterable[str], most: int = 3) -> str:
    """`a; b; c; 2 more`."""
    found = list(items)
    rest = len(found) - most
    return "; ".join([*found[:most], *([f"{rest} more"] if rest > 0 else [])])


def run_text(study: Study, keys: Sequence[str], row: Mapping[str, Any]) -> str:
    """Which run it is, in the words of the study: `ring all-reduce, 4 ranks, repeat 1`. Empty lists are left out."""
    said = [value_text(study, key, row.get(key), named=True) for key in keys if row.get(key) not in ([], {}, ())]
    return ", ".join([*said, f"repeat {row['repeat'] + 1}"])


def printable(text: str) -> str:
    """`text` with control characters as their symbols (␛): a page or a terminal must not act on them."""
    return text.translate({code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421})
