"""Published numbers next to measured ones: config/reference/<name>.csv (columns and rules in its README.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError
from scalestudy.figures.chart import Line, Point
from scalestudy.files import NUMBER, read_table
from scalestudy.spec.columns import MEASURED, METRICS
from scalestudy.spec.labels import column_label, listed
from scalestudy.spec.layout import REFERENCES

SAMPLES_TOLERANCE = 0.01
OR = "|"
"""Between the values of a condition that any of them meets."""

Published = dict[str, str]
Runs = Sequence[Mapping[str, Any]]


def read_reference(name: str, folder: Path = REFERENCES) -> list[Published]:
    """The rows of one file; raises UserError where a row has no label or source."""
    file = folder / f"{name}.csv"
    rows = read_table(file, numbers=METRICS)
    for line, row in enumerate(rows, start=2):
        for key in ("label", "source"):
            if not row.get(key):
                what = f"a published number needs a `{key}`"
                raise UserError(what, f"{file}:{line}", "see config/reference/README.md")
    return rows


@dataclass(frozen=True)
class Reference:
    """Published rows for the axes `x` and `y` of a figure whose lines are the values of `series`."""

    rows: Sequence[Published]
    x: str
    y: str
    series: str

    def drawable(self, runs: Runs) -> list[Published]:
        """The rows with numbers for both axes that belong into a panel of these runs."""
        return [row for row in self.rows if self._has_both(row) and not self._unmet(row, runs)]

    def lines(self, runs: Runs) -> list[Line]:
        """One line per label, of the rows that belong into a panel of these runs."""
        lines: dict[str, list[Point]] = {}
        for row in self.drawable(runs):
            x, y = float(row[self.x]), float(row[self.y])
            point = Point(x, y, kind="derived" if row.get("kind") == "derived" else "published")
            lines.setdefault(row["label"], []).append(point)
        return [
            Line(label, tuple(sorted(points, key=lambda point: point.x)), "published", style)
            for style, (label, points) in enumerate(lines.items())
        ]

    def citation(self, shown: Sequence[Published], runs: Runs) -> str:
        """Sources and remarks of the numbers that are `shown`, or the reason why none is; empty without any."""
        if not self.rows:
            return ""
        cited = listed(dict.fromkeys(row.get("citation") or row["source"] for row in shown or self.rows), 5)
        if shown:
            remarks = list(dict.fromkeys(row["note"] for row in shown if row.get("note")))
            is_derived = {row.get("kind") for row in shown} == {"derived"}
            origin = "Derived from published numbers" if is_derived else "Published"
            return f"{origin}: {cited}" + (f" ({listed(remarks, 4)})" if remarks else "")
        usable = next((row for row in self.rows if self._has_both(row)), None)
        why = f"they do not hold “{column_label(self.y)}” over “{column_label(self.x)}”"
        if usable is not None:
            unmet = ((column_label(key).lower(), usable[key].replace(OR, " or ")) for key in self._unmet(usable, runs))
            conditions = ", ".join(map(" ".join, unmet))
            why = f"they are for {conditions}" if conditions else "nothing is drawn beside them"
        return f"Published numbers of {cited} are not drawn: {why}"

    def _has_both(self, row: Published) -> bool:
        return all(NUMBER.fullmatch(row.get(column) or "") for column in (self.x, self.y))

    def _unmet(self, row: Published, runs: Runs) -> list[str]:
        """The conditions of a row that no single run of the panel meets together, fewest first."""
        keys = {key for run in runs for key in run} - {self.x, self.series, "kind", *MEASURED}
        conditions = [key for key, cell in row.items() if cell and key in keys]
        misses = [[key for key in conditions if not _meets(_value(run, key), key, row[key])] for run in runs]
        return min(misses, key=len, default=conditions)


def _value(run: Mapping[str, Any], key: str) -> Any:
    """A run's value of a column; where its study leaves the device to the machine, what the run found there."""
    device_name = run.get("instrument.device_name")
    if key == "device" and run.get(key) is None and device_name:
        return "cpu" if device_name == "cpu" else "cuda"
    return run.get(key)


def _meets(value: Any, key: str, cell: str) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        tolerance = SAMPLES_TOLERANCE if key == "training_samples" else 1e-9
        numbers = [float(part) for part in cell.split(OR) if NUMBER.fullmatch(part)]
        return any(abs(value - number) <= tolerance * abs(number) for number in numbers)
    return str(value) in cell.split(OR)
