"""One study on the report's page: its claims, figures, tables and runs, and how they were made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scalestudy.analysis.identity import varied_columns
from scalestudy.analysis.summarise import STATUSES
from scalestudy.figures import notes
from scalestudy.figures.caption import alt_text, caption, title_of
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.groups import Row
from scalestudy.figures.kinds import chart_of
from scalestudy.figures.render import render
from scalestudy.figures.style import styled, svg_bytes
from scalestudy.figures.tables import Table, said, table_of
from scalestudy.figures.words import run_text
from scalestudy.report.answers import Answer, answer_of
from scalestudy.report.small_svg import data_url
from scalestudy.report.verdicts import Judged, read_verdicts
from scalestudy.results.stored import read_result
from scalestudy.spec.labels import column_label, number, value_text
from scalestudy.spec.layout import figure_file, table_file
from scalestudy.spec.study import Study

PIXELS_PER_INCH = 125
"""A third larger than on paper: screens are read from further away."""


@dataclass(frozen=True)
class FigurePart:
    """One figure on the page."""

    title: str
    image: str
    width: int
    alt: str
    caption: str
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    file: str
    narrow: bool


@dataclass(frozen=True)
class RunLine:
    """One run on the page; `cells` are the values that tell it from the others."""

    run: str
    anchor: str
    text: str
    cells: tuple[str, ...]
    repeat: int
    status: str
    throughput: str
    started: str


@dataclass(frozen=True)
class StudyPart:
    """One study on the page. `conditions` are facts about its runs: name and value."""

    study: Study
    counts: dict[str, int]
    claims: tuple[Judged, ...]
    answer: Answer
    figures: list[FigurePart]
    tables: list[tuple[Table, str]]
    run_keys: list[str]
    runs: dict[str, RunLine]
    absent: list[tuple[str, str]]
    trust: list[str]
    conditions: list[tuple[str, str]]


def study_part(study: Study, machine: str, rows: Sequence[Row]) -> StudyPart:
    """All that the page says of a study, from its rows and the verdicts on its claims."""
    keys = varied_columns(study)
    return StudyPart(
        study,
        counts_of(rows),
        read_verdicts(machine, study.scale, study.name),
        answer_of(study, machine),
        [_figure_part(study, machine, figure) for figure in study.figures],
        [
            (table_of(study, machine, table), str(table_file(machine, study.scale, study.name, table.name, "md")))
            for table in study.tables
        ],
        [column_label(key) for key in keys],
        {row["run"]: _run_line(study, keys, row) for row in rows},
        [(run_text(study, keys, row), said(row)) for row in rows if row["status"] != "valid"],
        [*notes.trust(rows), *unchecked(study, machine, rows)],
        _conditions(study, machine, rows),
    )


def counts_of(rows: Iterable[Row]) -> dict[str, int]:
    """How many runs have each status."""
    found = Counter(row["status"] for row in rows)
    return {status: found[status] for status in STATUSES}


def unchecked(study: Study, machine: str, rows: Sequence[Row]) -> list[str]:
    """What could not be checked of valid runs, with how many."""
    valid = [row for row in rows if row["status"] == "valid"]
    runs = {run.id: run for run in study.runs}
    found: Counter[str] = Counter()
    for row in valid:
        if row.get("unchecked"):
            found.update((read_result(machine, runs[row["run"]]) or {}).get("unchecked", []))
    return [f"Not checked in {count} of {len(valid)} valid runs: {what.rstrip('.')}" for what, count in found.items()]


def _conditions(study: Study, machine: str, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Machine, instrument, repeats, dates and emulation of a study's runs."""
    made = [row for row in rows if row["status"] == "valid"]
    place, _, campaign = machine.partition("+")
    begun = sorted(str(row["started"])[:16].replace("T", " ") for row in made if row.get("started"))
    hardware = [_values(made, key) for key in ("cpu", "cores", "device_name")]
    versions = [
        f"{notes.INSTRUMENT[key]} {value}"
        for key in ("torch", "python", "allocator", "code")
        if (value := _values(made, key))
    ]
    facts = [
        ("Machine", ", ".join(filter(None, [place, hardware[0], hardware[1] and f"{hardware[1]} cores", hardware[2]]))),
        ("Instrument", ", ".join(versions)),
        ("Campaign", campaign),
        ("Repeats", f"n = {study.repeats} per configuration, unless a row of a table says otherwise"),
        ("Measured", begun[0] if len(set(begun)) == 1 else f"{begun[0]} to {begun[-1]}" if begun else ""),
        ("Emulated", notes.emulated(rows) or "nothing"),
        ("Left out", "; ".join(study.left_out)),
    ]
    return [(name, value) for name, value in facts if value]


def _values(rows: Sequence[Row], key: str) -> str:
    """All values of one fact about the instrument."""
    return " / ".join(dict.fromkeys(str(row[f"instrument.{key}"]) for row in rows if row.get(f"instrument.{key}")))


def _run_line(study: Study, keys: Sequence[str], row: Row) -> RunLine:
    rate = row["throughput_samples_per_s"]
    return RunLine(
        row["run"],
        f"{study.name}-{row['run']}",
        run_text(study, keys, row),
        tuple(value_text(study, key, row.get(key)) for key in keys),
        row["repeat"] + 1,
        row["status"] + (", disturbed" if row.get("disturbed") else ""),
        "–" if rate is None or math.isnan(rate) else number(rate, 4),
        str(row.get("started") or "")[:16].replace("T", " "),
    )


def _figure_part(study: Study, machine: str, figure: FigureSpec) -> FigurePart:
    """The figure without its title, which stands below it with caption and notes."""
    chart = chart_of(study, machine, figure)
    with styled():
        drawn = render(replace(chart, title=""))
        svg = svg_bytes(drawn).decode()
    width = round(float(drawn.get_size_inches()[0]) * PIXELS_PER_INCH)
    file = str(figure_file(machine, study.scale, study.name, figure.file_name))
    return FigurePart(
        title_of(chart), data_url(svg), width, alt_text(chart), caption(chart), chart.notes, chart.sources, file,
        len(chart.panels) == 1,
    )  # fmt: skip
