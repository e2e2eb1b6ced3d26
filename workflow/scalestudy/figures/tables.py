"""Tables: a row per configuration, each value as its mean with its interval; as CSV, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from scalestudy.analysis.rows import read_rows
from scalestudy.analysis.scaling import bases
from scalestudy.analysis.stats import CENSORED, with_interval
from scalestudy.analysis.summarise import numbers_of
from scalestudy.analysis.workload import varied_columns, workload_of
from scalestudy.claims.model import MIN_REPEATS
from scalestudy.figures import notes
from scalestudy.figures.catalogue import TableSpec
from scalestudy.figures.groups import OWN_PANEL, Row, by, selected
from scalestudy.files import canonical_json, write_text
from scalestudy.spec.columns import MAX_TESTED_FACTOR, extrapolated_too_far, is_number
from scalestudy.spec.labels import column_label, configuration_text, friendly, run_text, unit_of, value_text, with_unit
from scalestudy.spec.layout import table_file
from scalestudy.spec.run import is_compute_emulated
from scalestudy.spec.study import Study

WIDE_RANGE = 1000
"""Values further apart than this share the unit of the smallest."""
MARKS = {"extrapolated": "~", "predicted": "≈", "reported": "*"}


@dataclass(frozen=True)
class Table:
    """A table before it is written, in words and in numbers. `absent` names each run that is not in it, and why."""

    title: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    head: list[str]
    """Names of the columns, units included."""
    lines: list[list[str]]
    """The text of each row."""
    records: list[dict[str, Any]]
    """Each row in full, in the columns' own units."""
    notes: tuple[str, ...]
    absent: tuple[str, ...]


def write_table(study: Study, machine: str, name: str) -> list[Path]:
    """Write a table as CSV, Markdown and LaTeX; returns their paths."""
    table = table_of(study, machine, study.table(name))
    columns, written = "l" * len(table.keys) + "r" * (1 + len(table.values)), []
    numbers = pd.DataFrame(table.records).to_csv(index=False, float_format="%.10g", lineterminator="\n")
    tabular = booktabs(table.title, columns, table.head, table.lines, table.notes)
    for suffix, text in (("csv", numbers), ("md", _markdown(table)), ("tex", tabular)):
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
    rows.sort(key=lambda row: [key_values.index(canonical_json(row.get(key))) for key, key_values in order.items()])
    mixed = len({is_compute_emulated(row) for row in rows}) > 1
    groups = list(by(rows, "configuration").values())
    texts = [_texts(study, keys, group[0], mixed) for group in groups]
    records = [_record(study, keys, text, values, group) for text, group in zip(texts, groups, strict=True)]
    scales = scales_of(values, records)
    return Table(
        spec.title or spec.name,
        tuple(keys),
        values,
        head_of(keys, study.labels, values, scales),
        [[*text, *_cells(record, values, scales)] for text, record in zip(texts, records, strict=True)],
        records,
        (*_notes(rows, records, spec, values), *_bases(study, every, rows, spec)),
        tuple(f"{run_text(study, keys, row)}: {reason_text(row)}" for row in rows if row["status"] != "valid"),
    )


def _is_measured(rows: Sequence[Row], column: str) -> bool:
    """Whether a valid run has a value of this column, or is known to lie beyond one."""
    valid = [row for row in rows if row["status"] == "valid"]
    return any(is_number(row.get(column)) or row.get(f"{column}_kind") == CENSORED for row in valid)


def _texts(study: Study, keys: Sequence[str], row: Row, mixed: bool) -> list[str]:
    """The values of a configuration's keys as a person reads them."""
    texts = [value_text(study, key, row.get(key)) for key in keys]
    if mixed and is_compute_emulated(row) and texts and not any("emulated" in text for text in texts):
        texts[0] += " (compute emulated)"
    return texts


def _record(
    study: Study, keys: Sequence[str], texts: Sequence[str], values: Sequence[str], group: Sequence[Row]
) -> dict[str, Any]:
    """A configuration's keys, numbers of runs, and values."""
    first, valid = group[0], [row for row in group if row["status"] == "valid"]
    own = [first.get(key) for key in keys]
    record = dict(
        zip(keys, (canonical_json(one) if isinstance(one, (list, dict)) else one for one in own), strict=True)
    )
    record |= {f"{key} (label)": text for key, text in zip(keys, texts, strict=True) if key in study.labels}
    record |= {"n": len(valid), "n_planned": len(group), "emulated": bool(first["emulated"])}
    for column in values:
        record |= numbers_of(valid, column)
        disturbed = sum(bool(row["disturbed"]) for row in valid if is_number(row.get(column)))
        record[f"{column}_disturbed"] = disturbed if record[f"{column}_kind"] else None
        if record[f"{column}_kind"] == CENSORED:
            record[f"{column}_censored"] = sum(row.get(f"{column}_kind") == CENSORED for row in valid)
    return record


def head_of(
    keys: Sequence[str], labelled: Container[str], values: Sequence[str], scales: Sequence[tuple[float, str]]
) -> list[str]:
    """The names of all columns with their units; `labelled` keys have values with labels of their own, which hold the unit."""
    named = (with_unit(column_label(key), "" if key in labelled else unit_of(key)) for key in keys)
    return [
        *named,
        "n",
        *(with_unit(column_label(value), unit) for value, (_, unit) in zip(values, scales, strict=True)),
    ]


def scales_of(values: Sequence[str], records: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """For each value's column: what to divide by, and the unit. Sizes have one unit, as they are compared."""
    scales = []
    for value in values:
        unit = unit_of(value)
        compared = [other for other in values if unit_of(other) == "B"] if unit == "B" else [value]
        means = sorted(abs(record[other]) for record in records for other in compared if record[other])
        is_wide = unit != "B" and bool(means) and means[-1] > WIDE_RANGE * means[0]
        scales.append(friendly(unit, [10 * means[0]] if is_wide else means))  # the least is 0.1 at least
    return scales


def _cells(record: Mapping[str, Any], values: Sequence[str], scales: Sequence[tuple[float, str]]) -> list[str]:
    """The number of runs, and each value as its mean with its interval."""
    count = str(record["n"]) if record["n"] == record["n_planned"] else f"{record['n']} of {record['n_planned']}"
    return [count, *(cell_text(record, value, factor) for value, (factor, _) in zip(values, scales, strict=True))]


def cell_text(record: Mapping[str, Any], column: str, factor: float) -> str:
    """`~6.80 ± 0.36`: rounded to two digits of the half width; without one, to three digits. `> 13.4 (2)` where two are censored."""
    mean, low, high, kind = (record[f"{column}{end}"] for end in ("", "_low", "_high", "_kind"))
    if kind == CENSORED:
        return f"> {with_interval(low, None, None, factor)} ({record[f'{column}_censored']})"
    if mean is None:
        return "–"
    disturbed = notes.DISTURBED if record[f"{column}_disturbed"] else ""
    return MARKS.get(kind, "") + with_interval(mean, low, high, factor) + disturbed


def reason_text(row: Row) -> str:
    """A run's status and its reason."""
    if row["status"] == "missing":
        return "not run" if row["reason"] == "no result yet" else str(row["reason"])
    return f"{row['status']}: {row['reason']}"


def _notes(
    rows: Sequence[Row], records: Sequence[Mapping[str, Any]], spec: TableSpec, shown: Sequence[str]
) -> list[str]:
    empty = [column_label(value).lower() for value in spec.values if value not in shown]
    kinds = {record[f"{value}_kind"] for record in records for value in shown}
    counts = [record["n"] for record in records if any(record[value] is not None for value in shown)]
    meaning = f"an interval needs {MIN_REPEATS} runs"
    if max(counts, default=1) >= MIN_REPEATS:
        meaning = "values are means and 95 % intervals (times, rates, sizes, ratios: on logarithms)"
        meaning += f"; below {MIN_REPEATS} runs the mean alone" if min(counts) < MIN_REPEATS else ""
    crowded = "efficiency" in spec.values and any(row["oversubscribed"] for row in rows)
    note_texts = [
        f"n: valid runs; {meaning}",
        "~: extrapolated from a measured window" if "extrapolated" in kinds else "",
        "≈: predicted before the first step" if "predicted" in kinds else "",
        "*: reported by the program, not measured" if "reported" in kinds else "",
        f"~ without an interval: beyond a factor of {MAX_TESTED_FACTOR:,.0f} from window to training it is not known"
        if any(extrapolated_too_far(row, value) for row in rows if row["status"] == "valid" for value in shown)
        else "",
        "> t (k): k runs ended after t or later without reaching it, so there is no mean" if CENSORED in kinds else "",
        f"No value in any run: {', '.join(empty)}" if empty else "",
        notes.emulated(rows),
        "More threads than cores: no efficiency" if crowded else "",
        notes.missing(rows),
        *notes.trust(rows),
    ]
    return [note for note in note_texts if note]


def _bases(study: Study, every: pd.DataFrame, rows: Sequence[Row], spec: TableSpec) -> list[str]:
    """What the efficiencies of a table are relative to."""
    if "efficiency" not in spec.values:
        return []
    workload, all_bases = workload_of(study), bases(every, study)
    shown = [all_bases[name] for name in dict.fromkeys(workload[row["run"]] for row in rows) if name in all_bases]
    by_run = {row["run"]: row for row in selected(every, {})}
    firsts = [by_run[base.runs[0]] for base in shown]
    # What tells a workload's base run from those of the others.
    keys = [key for key in varied_columns(study) if len(by(firsts, key)) > 1]
    return notes.bases([(configuration_text(study, keys, row), base) for row, base in zip(firsts, shown, strict=True)])


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
