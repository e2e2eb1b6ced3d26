"""How quantities, lists and runs are written."""

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
    if not finite or unit not in ("s", "B", "MiB"):
        return 1.0, unit
    middle = finite[len(finite) // 2]
    if unit == "s":
        # A unit is left for the next where two of the next are reached: 119 s, 2 min.
        fits = [step for step in TIME if middle >= step[0] * (1.0 if step[0] <= 1.0 else 2.0)]
        return (fits or TIME[:1])[-1]
    base = 1.0 if unit == "B" else 2.0**20
    factor, name = ([step for step in BYTES if middle * base >= step[0]] or BYTES[:1])[-1]
    return factor / base, name


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


def configuration_text(study: Study, keys: Sequence[str], row: Mapping[str, Any]) -> str:
    """A configuration in the words of its study: `ring all-reduce, 4 ranks`. Empty lists are left out."""
    said = (value_text(study, key, row.get(key), named=True) for key in keys if row.get(key) not in ([], {}, ()))
    return ", ".join(said)


def run_text(study: Study, keys: Sequence[str], row: Mapping[str, Any]) -> str:
    """A run in the words of its study: `ring all-reduce, 4 ranks, repeat 1`, or `…, explained`."""
    which = "explained" if row.get("program.explain") is True else f"repeat {row['repeat'] + 1}"
    return ", ".join(filter(None, (configuration_text(study, keys, row), which)))


def printable(text: str) -> str:
    """`text` with control characters as their symbols (␛): a page or a terminal must not act on them."""
    return text.translate({code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421})
