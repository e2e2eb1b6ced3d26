"""Which runs share a panel and a line, and what tells lines apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scalestudy.analysis.stats import interval
from scalestudy.analysis.workload import varied_columns
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.files import canonical_json
from scalestudy.spec.columns import MEASURED, agrees, columns_of_runs
from scalestudy.spec.labels import value_text
from scalestudy.spec.run import is_compute_emulated
from scalestudy.spec.study import Study

Row = dict[str, Any]
Looks = dict[str, tuple[int, int]]
"""Number of the colour and of the mark of each line, by its label."""
OWN_PANEL = ("model", "device", "data.source", "dtype")
"""What differs too much to share axes: without `panel`, each value gets a separate panel."""
DOMINANT = 0.7
MAX_LINES = 6


def selected(rows: pd.DataFrame, where: Mapping[str, Any]) -> list[Row]:
    """The rows that agree with `where`, as plain dictionaries; a list in `where` stands for any of its values."""
    records: list[Row] = rows.to_dict("records")  # type: ignore[assignment]
    return [row for row in records if agrees(row, where)]


@dataclass(frozen=True)
class Group:
    """The runs of one panel, line by line."""

    title: str
    runs: list[Row]
    lines: dict[str, list[Row]]
    note: str = ""
    named: bool = True
    """Whether a line's label says its value of `series`."""


def grouped(study: Study, figure: FigureSpec, runs: Sequence[Row], x: str | None = None) -> list[Group]:
    """Runs by panel and by line. What else is varied, and would put two configurations on one spot, joins the label. Runs
    of which the measured column of a series or panel is not known have no line.

    Without `panel`, a model, device, data source or number type that has to be told apart gets separate panels; so
    do the series themselves where lines would be too many.
    """
    series, panel = figure.series, figure.panel
    for key in {series, panel or series} & MEASURED.keys():
        runs = [row for row in runs if row.get(key) is not None and math.isfinite(row[key])]
    if panel is None:
        extras = _extras(study, runs, series, x)
        panel = next((key for key in extras if key in OWN_PANEL), None)
        lines = {canonical_json([row.get(key) for key in (series, *extras)]) for row in runs}
        if panel is None and extras and len(lines) > MAX_LINES:
            panel = series
    return [_group(study, panel, members, series, x) for members in by(runs, panel).values()]


def _group(study: Study, panel: str | None, members: list[Row], series: str, x: str | None) -> Group:
    """The panel of these runs. A value that nearly all of them have joins no label but the note."""

    def text(key: str, row: Row) -> str:
        return value_text(study, key, row.get(key), named=True)

    extras = _extras(study, members, series, x)
    common = {key: row for key in extras if key != "ranks" and (row := _dominant(members, key)) is not None}
    named = not (panel == series and extras)
    mixed = len({is_compute_emulated(row) for row in members}) > 1 and "device" not in extras
    lines: dict[str, list[Row]] = {}
    for row in members:
        apart = [key for key in extras if key not in common or row.get(key) != common[key].get(key)]
        words = [text(key, row) for key in ([series] if named else []) + apart]
        words += ["emulated"] if mixed and is_compute_emulated(row) else []
        lines.setdefault(", ".join(words), []).append(row)
    assumed = ", ".join(text(key, row) for key, row in common.items())
    name = "" if panel is None else text(panel, members[0])
    if name and all(map(is_compute_emulated, members)) and "emulated" not in name.lower():
        name += ", compute emulated"
    title = name[:1].upper() + name[1:] if panel not in (None, "model", "dtype") else name
    return Group(title, members, lines, f"Unless the legend says otherwise: {assumed}" if assumed else "", named)


def by(runs: Iterable[Row], key: str | None) -> dict[str, list[Row]]:
    """Runs by their value of a column, as JSON; without a column all together."""
    groups: dict[str, list[Row]] = {}
    for row in runs:
        groups.setdefault("" if key is None else canonical_json(row.get(key)), []).append(row)
    return groups


def _extras(study: Study, runs: Sequence[Row], series: str, x: str | None) -> list[str]:
    """Varied columns that are needed, in addition to `series` and x, so that no two configurations share a spot."""
    configurations = [(members[0], _place(members, x)) for members in by(runs, "configuration").values()]

    def spots(extra: list[str]) -> int:
        return len({canonical_json([at, *(row.get(key) for key in (series, *extra))]) for row, at in configurations})

    extras: list[str] = []
    varied = varied_columns(study) if spots([]) < len(configurations) else []
    while (spot_count := spots(extras)) < len(configurations):
        candidates = [key for key in varied if key not in (series, *extras, x)]
        better = [key for key in candidates if spots([*extras, key]) > spot_count]
        if not better:
            break
        extras.append(next((key for key in better if key in OWN_PANEL), better[0]))
    return extras


def _place(runs: Sequence[Row], x: str | None) -> Any:
    """Where a configuration with these runs lies on the horizontal axis: its key, or the mean of what was measured."""
    value = None if x is None else runs[0].get(x)
    if not isinstance(value, float):
        return value
    estimate = interval([run[str(x)] for run in runs if run["status"] == "valid"])
    return None if estimate is None else float(f"{estimate.mean:.4g}")


def _dominant(runs: Sequence[Row], key: str) -> Row | None:
    """A run with the value that most configurations have, where nearly all have one."""
    firsts = {row["configuration"]: row for row in runs}.values()
    several = by(firsts, key)
    common = max(several.values(), key=len)
    return common[0] if len(several) > 1 and len(common) / len(firsts) > DOMINANT else None


def disturbed(rows: Sequence[Row]) -> int:
    """How many of these runs are valid and were disturbed."""
    return sum(row["status"] == "valid" and bool(row["disturbed"]) for row in rows)


def palette(study: Study) -> dict[tuple[str, str], int]:
    """A number for each value of each column that some figure has as its series, in the order of the study.

    A value keeps its number, and so its look, whatever a figure leaves out; two columns share none.
    """
    rows = columns_of_runs(study.runs)
    columns = dict.fromkeys(figure.series for figure in study.figures)
    keys = dict.fromkeys((column, canonical_json(row.get(column))) for column in columns for row in rows)
    return {key: number for number, key in enumerate(keys)}


def styles(study: Study, series: str, groups: Sequence[Group]) -> Looks:
    """Colour and mark of each line, by its label: both are those of its value of `series`.

    Further lines of one value, which differ in something else, share its colour and have marks that no value has.
    """
    colours, looks = palette(study), Looks()
    taken, free = set[int](), len(colours)
    for group in groups:
        for label, members in group.lines.items():
            if label in looks:
                continue
            key = (series, canonical_json(members[0].get(series)))
            colour = colours.get(key, len(colours) + len(looks)) if group.named else len(looks)
            mark = colour if colour not in taken else free
            free += mark == free
            taken.add(colour)
            looks[label] = (colour, mark)
    return looks
