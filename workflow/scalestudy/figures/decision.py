"""Whether a setting pays: pairs of runs that differ in nothing else, and what their difference says."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scalestudy.analysis.identity import varied_columns
from scalestudy.analysis.stats import Interval, interval
from scalestudy.figures.build import Row
from scalestudy.figures.words import column_label, friendly, number, unit_of, value_text, with_unit
from scalestudy.files import canonical_json
from scalestudy.spec.study import Study

FEWEST_PAIRS = 3
"""Two pairs have a range, and no interval that a decision can stand on."""


def sentences(study: Study, rows: Sequence[Row], key: str, column: str) -> list[str]:
    """One sentence for each value of `key` but its first, in each combination of what else is varied.

    Runs of one repeat share their seed and are compared with each other: the interval is that of their differences.
    """
    others = [name for name in varied_columns(study) if name != key]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(canonical_json([row.get(name) for name in others]), []).append(row)
    several = [name for name in others if len({canonical_json(row.get(name)) for row in rows}) > 1]
    said = []
    for group in groups.values():
        where = ", ".join(value_text(study, name, group[0].get(name), named=True) for name in several)
        values = list({canonical_json(row.get(key)): row.get(key) for row in group}.values())
        for value in values[1:]:
            found = interval(_differences(group, key, values[0], value, column))
            change = " instead of ".join(value_text(study, key, one, named=True) for one in (value, values[0]))
            said.append((f"{where}: " if where else "") + _sentence(change, column, found))
    return said


def _differences(group: Sequence[Row], key: str, before: object, after: object, column: str) -> list[float]:
    """`after` less `before`, for each repeat that has both."""
    known: dict[tuple[str, int], float] = {}
    for row in group:
        value = row.get(column)
        if row["status"] == "valid" and value is not None and math.isfinite(value):
            known[canonical_json(row.get(key)), row["repeat"]] = value
    old, new = canonical_json(before), canonical_json(after)
    return [
        value - known[old, repeat] for (name, repeat), value in known.items() if name == new and (old, repeat) in known
    ]


def _sentence(change: str, column: str, found: Interval | None) -> str:
    if found is None:
        return f"{change}: nothing to compare yet"
    if found.n < FEWEST_PAIRS or found.low is None or found.high is None:
        few = "1 pair of runs decides" if found.n == 1 else f"{found.n} pairs of runs decide"
        return f"{change}: {few} nothing; repeat it {FEWEST_PAIRS} times or more"
    factor, unit = friendly(unit_of(column), [abs(found.mean)])
    mean, low, high = (
        f"{'+' if value > 0 else ''}{number(value / factor)}" for value in (found.mean, found.low, found.high)
    )
    text = with_unit(f"{column_label(column)} changes by {mean} [{low} … {high}]", unit)
    if found.low <= 0 <= found.high:
        return f"{change}: undecided; {text}, {found.n} pairs"
    better = (found.mean < 0) == lower_is_better(column)
    return f"{change}: {'better' if better else 'worse'}; {text}, {found.n} pairs"


def lower_is_better(column: str) -> bool:
    """Times, losses, stalls and what is taken from the machine."""
    return unit_of(column) in ("s", "B", "MiB") or column in ("loss", "data_stall")
