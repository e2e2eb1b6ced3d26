"""Published numbers next to measured ones: config/reference/<name>.csv (columns and rules in its README.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from scalestudy.errors import UserError
from scalestudy.figures.chart import Line, Point
from scalestudy.figures.words import listed
from scalestudy.files import NUMBER, read_table
from scalestudy.spec.columns import MEASURED, METRICS
from scalestudy.spec.labels import column_label
from scalestudy.spec.layout import REFERENCES

SAMPLES_TOLERANCE = 0.01
OR = "|"
"""Between the values of a condition that any of them meets."""

Published = dict[str, str]


def read_reference(name: str, folder: Path = REFERENCES) -> list[Published]:
    """The rows of one file; raises UserError where a row has no label or source."""
    file = folder / f"{name}.csv"
    rows = read_table(file, numbers=METRICS)
    for line, row in enumerate(rows, start=2):
        for key in ("label", "source"):
            if not row.get(key):
                raise UserError(
                    f"a published number needs a `{key}`", f"{file}:{line}", "see config/reference/README.md"
                )
    return rows


def published_lines(
    rows: Sequence[Published], runs: Sequence[Mapping[str, Any]], x: str, y: str, series: str
) -> list[Line]:
    """One line per label, of the rows that have `x` and `y` and whose conditions some of the panel's runs meet."""
    lines: dict[str, list[Point]] = {}
    for row in drawable(rows, runs, x, y, series):
        kind: Literal["published", "derived"] = "derived" if row.get("kind") == "derived" else "published"
        point = Point(_number(row[x]) or 0.0, _number(row[y]) or 0.0, kind=kind)
        lines.setdefault(row["label"], []).append(point)
    return [
        Line(label, tuple(sorted(points, key=lambda point: point.x)), "published", style)
        for style, (label, points) in enumerate(lines.items())
    ]


def drawable(
    rows: Sequence[Published], runs: Sequence[Mapping[str, Any]], x: str, y: str, series: str
) -> list[Published]:
    """The rows with numbers for both axes that belong into a panel of these runs."""
    return [row for row in rows if _has_both(row, x, y) and not _unmet(row, runs, {x, series})]


def _has_both(row: Published, x: str, y: str) -> bool:
    return None not in (_number(row.get(x)), _number(row.get(y)))


def _number(cell: str | None) -> float | None:
    """A cell as a number; None where it is empty or none."""
    return float(cell) if cell and NUMBER.fullmatch(cell) else None


def citation(
    rows: Sequence[Published],
    shown: Sequence[Published],
    runs: Sequence[Mapping[str, Any]],
    x: str,
    y: str,
    series: str,
) -> str:
    """Sources and remarks of the published numbers that are `shown`, or the reason why none is; empty without any."""
    if not rows:
        return ""
    cited = listed(dict.fromkeys(row.get("citation") or row["source"] for row in shown or rows), 5)
    if not shown:
        usable = next((row for row in rows if _has_both(row, x, y)), None)
        why = f"they do not hold “{column_label(y)}” over “{column_label(x)}”"
        if usable is not None:
            unmet = _unmet(usable, runs, {x, series})
            why = "they are for " + ", ".join(
                f"{column_label(key).lower()} {usable[key].replace(OR, ' or ')}" for key in unmet
            )
        return f"Published numbers of {cited} are not drawn: {why}"
    remarks = list(dict.fromkeys(row["note"] for row in shown if row.get("note")))
    origin = "Derived from published numbers" if {row.get("kind") for row in shown} == {"derived"} else "Published"
    return f"{origin}: {cited}" + (f" ({listed(remarks, 4)})" if remarks else "")


def _unmet(row: Published, runs: Sequence[Mapping[str, Any]], free: Iterable[str]) -> list[str]:
    """The conditions of a row that no single run of the panel meets together, fewest first."""
    keys = {key for run in runs for key in run}
    conditions = [
        key for key, cell in row.items() if cell and key in keys and key not in MEASURED and key not in {*free, "kind"}
    ]
    misses = [[key for key in conditions if not _meets(_value(run, key), key, row[key])] for run in runs]
    return min(misses, key=len, default=conditions)


def _value(run: Mapping[str, Any], key: str) -> Any:
    """A run's value of a column; where its study leaves the device to the machine, what the run found there."""
    if key == "device" and run.get(key) is None:
        found = run.get("instrument.device_name")
        return ("cpu" if found == "cpu" else "cuda") if found else None
    return run.get(key)


def _meets(value: Any, key: str, cell: str) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        tolerance = SAMPLES_TOLERANCE if key == "training_samples" else 1e-9
        numbers = [number for part in cell.split(OR) if (number := _number(part)) is not None]
        return any(abs(value - number) <= tolerance * abs(number) for number in numbers)
    return str(value) in cell.split(OR)
