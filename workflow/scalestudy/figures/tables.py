"""Tables: a row per configuration, each value as its mean with its interval; as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from scalestudy.analysis.rows import read_rows
from scalestudy.analysis.scaling import bases
from scalestudy.analysis.stats import CENSORED, FEWEST, Interval, interval_of, with_interval
from scalestudy.analysis.workload import varied_columns, workload_of
from scalestudy.figures import notes
from scalestudy.figures.catalogue import TableSpec
from scalestudy.figures.groups import OWN_PANEL, Row, by, selected
from scalestudy.files import canonical_json, write_text
from scalestudy.spec.columns import MAX_TESTED_FACTOR, extrapolated_too_far, is_number, kind_of, kind_of_all
from scalestudy.spec.labels import column_label, configuration_text, friendly, run_text, unit_of, value_text, with_unit
from scalestudy.spec.layout import table_file
from scalestudy.spec.run import is_compute_emulated
from scalestudy.spec.study import Study

WIDE_RANGE = 1000
"""Values further apart than this share the unit of the smallest."""
PLAIN = (str, int, float, type(None))
MARKS = {"extrapolated": "~", "predicted": "≈", "reported": "*"}


@dataclass(frozen=True)
class Cell:
    """One value of one configuration. Of `censored` runs the value is only known to be larger than `beyond`."""

    value: Interval | None
    kind: str
    disturbed: int = 0
    censored: int = 0
    beyond: float | None = None

    def text(self, factor: float) -> str:
        """`~6.80 ± 0.36`: rounded to two digits of the half width; without one, to three digits. `> 13.4 (2)` where two are censored."""
        if self.beyond is not None:
            return f"> {with_interval(self.beyond, None, None, factor)} ({self.censored})"
        if (value := self.value) is None:
            return "–"
        disturbed = notes.DISTURBED if self.disturbed else ""
        return MARKS.get(self.kind, "") + with_interval(value.mean, value.low, value.high, factor) + disturbed


@dataclass(frozen=True)
class TableRow:
    """One row: what it is, its runs, its values."""

    keys: tuple[Any, ...]
    texts: tuple[str, ...]
    valid: int
    planned: int
    emulated: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table before it is written. `absent` names each run that is not in it, and why.

    Values of `labelled` keys have labels of their own, which hold their units.
    """

    title: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    configurations: tuple[TableRow, ...]
    notes: tuple[str, ...]
    absent: tuple[str, ...]
    labelled: tuple[str, ...] = ()

    @property
    def head(self) -> list[str]:
        """The text of the head, units included."""
        keys = (with_unit(column_label(key), "" if key in self.labelled else unit_of(key)) for key in self.keys)
        values = zip(self.values, self.scales, strict=True)
        return [*keys, "n", *(with_unit(column_label(value), unit) for value, (_, unit) in values)]

    @property
    def scales(self) -> list[tuple[float, str]]:
        """For each value's column: what to divide by, and the unit. Sizes have one unit, as they are compared."""
        units = [unit_of(value) for value in self.values]
        found = []
        for place, unit in enumerate(units):
            places = [other for other, its in enumerate(units) if its == "B"] if unit == "B" else [place]
            cells = (row.cells[other] for row in self.configurations for other in places)
            means = sorted(abs(cell.value.mean) for cell in cells if cell.value and cell.value.mean)
            is_wide = unit != "B" and bool(means) and means[-1] > WIDE_RANGE * means[0]
            found.append(friendly(unit, [10 * means[0]] if is_wide else means))  # the least is 0.1 at least
        return found

    @property
    def spans(self) -> list[int]:
        """For each row, how many rows its first cell stands for; 0 where it continues the row above."""
        if len(self.keys) < 2:
            return [1] * len(self.configurations)
        sizes = [len(list(rows)) for _, rows in groupby(self.configurations, key=lambda row: row.texts[0])]
        return [0 if place else size for size in sizes for place in range(size)]

    @property
    def lines(self) -> list[list[str]]:
        """The text of each row."""
        factors = [factor for factor, _ in self.scales]
        found = []
        for row in self.configurations:
            count = str(row.valid) if row.valid == row.planned else f"{row.valid} of {row.planned}"
            found.append([*row.texts, count, *map(Cell.text, row.cells, factors)])
        return found


def write_table(study: Study, machine: str, name: str) -> list[Path]:
    """Write a table as CSV, Markdown and LaTeX; returns their paths."""
    table = table_of(study, machine, study.table(name))
    columns, written = "l" * len(table.keys) + "r" * (1 + len(table.values)), []
    tabular = booktabs(table.title, columns, table.head, table.lines, table.notes)
    for suffix, text in (("csv", _csv(table)), ("md", _markdown(table)), ("tex", tabular)):
        written.append(table_file(machine, study.scale, study.name, name, suffix))
        write_text(written[-1], text)
    return written


def table_of(study: Study, machine: str, spec: TableSpec) -> Table:
    """What a table shows, from runs.parquet; values that no valid run has are named below it, in place of empty columns."""
    every = read_rows(study, machine)
    rows = selected(every, spec.where)
    values = tuple(value for value in spec.values if _is_measured(rows, value)) or spec.values
    keys = [key for key in varied_columns(study) if len(by(rows, key)) > 1]
    keys.sort(key=lambda key: key not in OWN_PANEL)
    order = {key: list(by(rows, key)) for key in keys if key in OWN_PANEL}
    rows.sort(key=lambda row: [known.index(canonical_json(row.get(key))) for key, known in order.items()])
    mixed = len({is_compute_emulated(row) for row in rows}) > 1
    groups = by(rows, "configuration").values()
    configurations = tuple(_configuration(study, keys, values, group, mixed) for group in groups)
    absent = tuple(f"{run_text(study, keys, row)}: {said(row)}" for row in rows if row["status"] != "valid")
    below = (*_notes(rows, configurations, spec, values), *_bases(study, every, rows, spec))
    labelled = tuple(key for key in keys if key in study.labels)
    return Table(spec.title or spec.name, tuple(keys), values, configurations, below, absent, labelled)


def _is_measured(rows: Sequence[Row], column: str) -> bool:
    """Whether a valid run has a value of this column, or is known to lie beyond one."""
    valid = [row for row in rows if row["status"] == "valid"]
    return any(is_number(row.get(column)) or row.get(f"{column}_kind") == CENSORED for row in valid)


def _configuration(
    study: Study, keys: Sequence[str], values: Sequence[str], group: Sequence[Row], mixed: bool
) -> TableRow:
    first, valid = group[0], [row for row in group if row["status"] == "valid"]
    texts = [value_text(study, key, first.get(key)) for key in keys]
    if mixed and is_compute_emulated(first) and texts and not any("emulated" in text for text in texts):
        texts[0] += " (compute emulated)"
    cells = []
    for column in values:
        found = [row for row in valid if is_number(row.get(column))]
        ends = [row[f"{column}_low"] for row in valid if row.get(f"{column}_kind") == CENSORED]
        kind = CENSORED if ends else kind_of_all([kind_of(row, column) for row in found])
        disturbed = sum(bool(row["disturbed"]) for row in found)
        cells.append(Cell(interval_of(valid, column), kind, disturbed, len(ends), min(ends, default=None)))
    own = tuple(first.get(key) for key in keys)
    return TableRow(own, tuple(texts), len(valid), len(group), bool(first["emulated"]), tuple(cells))


def said(row: Row) -> str:
    """A run's status and its reason."""
    if row["status"] == "missing":
        return "not run" if row["reason"] == "no result yet" else str(row["reason"])
    return f"{row['status']}: {row['reason']}"


def _notes(rows: Sequence[Row], configurations: Sequence[TableRow], spec: TableSpec, shown: Sequence[str]) -> list[str]:
    empty = [column_label(value).lower() for value in spec.values if value not in shown]
    cells = [cell for row in configurations for cell in row.cells]
    counts = {cell.value.n for cell in cells if cell.value}
    kinds = {cell.kind for cell in cells if cell.value}
    meaning = f"an interval needs {FEWEST} runs"
    if max(counts, default=1) >= FEWEST:
        meaning = "values are means and 95 % intervals (times, rates, sizes, ratios: on logarithms)"
        meaning += f"; below {FEWEST} runs the mean alone" if min(counts) < FEWEST else ""
    crowded = "efficiency" in spec.values and any(row["oversubscribed"] for row in rows)
    censored = any(cell.censored for cell in cells)
    found = [
        f"n: valid runs; {meaning}",
        "~: extrapolated from a measured window" if "extrapolated" in kinds else "",
        "≈: predicted before the first step" if "predicted" in kinds else "",
        "*: reported by the program, not measured" if "reported" in kinds else "",
        f"~ without an interval: beyond a factor of {MAX_TESTED_FACTOR:,.0f} from window to training it is not known"
        if any(extrapolated_too_far(row, value) for row in rows if row["status"] == "valid" for value in shown)
        else "",
        "> t (k): k runs ended after t or later without reaching it, so there is no mean" if censored else "",
        f"No value in any run: {', '.join(empty)}" if empty else "",
        notes.emulated(rows),
        "More threads than cores: no efficiency" if crowded else "",
        notes.missing(rows),
        *notes.trust(rows),
    ]
    return [note for note in found if note]


def _bases(study: Study, every: pd.DataFrame, rows: Sequence[Row], spec: TableSpec) -> list[str]:
    """What the efficiencies of a table are relative to."""
    if "efficiency" not in spec.values:
        return []
    workload, found = workload_of(study), bases(every, study)
    shown = [found[name] for name in dict.fromkeys(workload[row["run"]] for row in rows) if name in found]
    by_run = {row["run"]: row for row in selected(every, {})}
    firsts = [by_run[base.runs[0]] for base in shown]
    # What tells a workload's base run from those of the others.
    keys = [key for key in varied_columns(study) if len(by(firsts, key)) > 1]
    return notes.bases([(configuration_text(study, keys, row), base) for row, base in zip(firsts, shown, strict=True)])


def _csv(table: Table) -> str:
    """All numbers in full, in the columns' own units."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    values = [f"{value}{end}" for value in table.values for end in ("", "_low", "_high", "_kind", "_disturbed")]
    writer.writerow([*table.keys, *(f"{key} (label)" for key in table.labelled), "n", "n_planned", "emulated", *values])
    for row in table.configurations:
        items = [value if isinstance(value, PLAIN) else canonical_json(value) for value in row.keys]
        items += [*(row.texts[table.keys.index(key)] for key in table.labelled), row.valid, row.planned, row.emulated]
        for cell in row.cells:
            value = cell.value
            numbers = [value.mean, value.low, value.high] if value else [None, cell.beyond, None]
            told = value is not None or cell.beyond is not None
            items += [*numbers, *((cell.kind, cell.disturbed) if told else (None, None))]
        writer.writerow([f"{item:.10g}" if isinstance(item, float) else item for item in items])
    return text.getvalue()


def _markdown(table: Table) -> str:
    """A pipe table, its notes, and each run that is missing."""
    aligned = ["---"] * len(table.keys) + ["--:"] * (1 + len(table.values))
    text = [f"**{markdown(table.title)}**", "", *pipe_table(table.head, aligned, table.lines)]
    text += ["", *(f"{markdown(note)}.  " for note in table.notes)]
    if table.absent:
        text += ["", "Not in this table:", "", *(f"- {markdown(absent)}" for absent in table.absent)]
    return "\n".join(text).rstrip() + "\n"


def pipe_table(head: Sequence[str], aligned: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    cells = [[*map(markdown, head)], aligned, *([*map(markdown, line)] for line in lines)]
    return [f"| {' | '.join(line)} |" for line in cells]


def markdown(text: str) -> str:
    """`text` with what Markdown would take for markup escaped; what stands between backticks stays code."""
    parts = re.split(r"(`[^`|]+`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([\\|*_`<~\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def booktabs(
    title: str, columns: str, head: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    """A LaTeX tabular with its notes below."""
    above, *body = [" & ".join(map(latex, line)) + r" \\" for line in (head, *lines)]
    text = [
        f"% {latex(title)}. Needs \\usepackage{{booktabs}}.",
        rf"\begin{{tabular}}{{{columns}}}",
        *(r"\toprule", above, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}",
        r"\par\smallskip",
        r"{\footnotesize " + " ".join(f"{latex(note)}." for note in notes) + r"\par}",
    ]
    return "\n".join(text) + "\n"


LATEX: dict[str, str | int | None] = {
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "µ": r"\textmu{}",
    "^": r"\textasciicircum{}",
    "~": r"$\sim$",
    "±": r"$\pm$",
    "†": r"\textdagger{}",
    "≈": r"$\approx$",
    "–": "--",
    "₀": r"$_0$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def latex(text: str) -> str:
    """`text` with what LaTeX would take for a command escaped."""
    return " ".join(text.split()).translate(str.maketrans(LATEX))
