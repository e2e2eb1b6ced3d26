"""Everything of some studies on one self-contained page."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import jinja2

from scalestudy.analysis.identity import varied_columns
from scalestudy.analysis.summarise import STATUSES, read_rows
from scalestudy.figures import notes
from scalestudy.figures.build import Row, selected
from scalestudy.figures.caption import alt_text, title_of
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.draw import chart_of
from scalestudy.figures.render import render
from scalestudy.figures.style import styled, svg_bytes
from scalestudy.figures.tables import Table, said, table_of
from scalestudy.figures.words import printable, quantity, run_text
from scalestudy.files import write_text
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.layout import figure_file, table_file
from scalestudy.spec.study import Study

KINDS = (
    ("measured", "taken on this machine in a run that was made as planned; filled markers"),
    (
        "extrapolated",
        "the time of the full training, from a measured window of a run that was ended on purpose; open markers, ~ in tables",
    ),
    ("predicted", "what the planner of a run expected of it before its first step; hollow markers, ≈ in tables"),
    (
        "emulated compute",
        "forward and backward replaced by waiting for an accelerator's published step time; loading, staging and exchange are real",
    ),
    ("published", "by others, on their machine, with the source named; grey crosses on broken lines"),
)


PIXELS_PER_INCH = 125
"""A third larger than on paper: screens are read from further away."""


@dataclass(frozen=True)
class FigurePart:
    """One figure on the page."""

    title: str
    image: str
    width: int
    alt: str
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    file: str
    narrow: bool


@dataclass(frozen=True)
class StudyPart:
    """One study on the page."""

    study: Study
    counts: dict[str, int]
    figures: list[FigurePart]
    tables: list[tuple[Table, str]]
    absent: list[tuple[str, str]]
    trust: list[str]


def write_report(
    studies: Sequence[Study], machine: str, scale: str, out: Path | str, started: float | None = None
) -> Path:
    """Write the report of `studies` to `out`; `started` (seconds since 1970) says when the work began. Returns the path."""
    rows = {study.name: selected(read_rows(study, machine), {}) for study in studies}
    runs = {row["run"]: row for found in rows.values() for row in found}
    parts = [_study_part(study, machine, rows[study.name]) for study in studies]
    used = {value for part in parts for table, _ in part.tables for value in table.values}
    used |= {column for study in studies for figure in study.figures for column in (figure.x, figure.y) if column}
    used |= {KIND_SHOWS[figure.kind] for study in studies for figure in study.figures if figure.kind in KIND_SHOWS}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
    page = environment.get_template("report.html.j2").render(
        machine=machine,
        scale=scale,
        parts=parts,
        counts=_counts(runs.values()),
        planned=len(runs),
        run_time=_run_time(runs.values()),
        started=None if started is None else datetime.fromtimestamp(started).astimezone().isoformat(" ", "minutes"),
        instruments=_instruments(runs.values()),
        instrument_names=notes.INSTRUMENT,
        kinds=KINDS,
        columns={name: MEASURED[name] for name in MEASURED if name in used},
        report_file=str(out),
    )
    write_text(out, page)
    return Path(out)


KIND_SHOWS = {
    "time_over_ranks": "training_time_s",
    "throughput_over_ranks": "throughput_samples_per_s",
    "efficiency": "efficiency",
    "accuracy_over_time": "accuracy",
    "staleness": "staleness",
}


def _study_part(study: Study, machine: str, rows: Sequence[Row]) -> StudyPart:
    keys = varied_columns(study)
    return StudyPart(
        study,
        _counts(rows),
        [_figure_part(study, machine, figure) for figure in study.figures],
        [
            (table_of(study, machine, table), str(table_file(machine, study.scale, study.name, table.name, "md")))
            for table in study.tables
        ],
        [(run_text(study, keys, row), said(row)) for row in rows if row["status"] != "valid"],
        notes.trust(rows),
    )


def _figure_part(study: Study, machine: str, figure: FigureSpec) -> FigurePart:
    """The figure without its title and small print, which stand below it as text."""
    chart = chart_of(study, machine, figure)
    with styled():
        drawn = render(replace(chart, title="", notes=()))
        svg = svg_bytes(drawn)
    # A separate image, so that identifiers of several figures cannot clash on one page.
    image = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    width = round(float(drawn.get_size_inches()[0]) * PIXELS_PER_INCH)
    file = str(figure_file(machine, study.scale, study.name, figure.file_name))
    return FigurePart(
        title_of(chart), image, width, alt_text(chart), chart.notes, chart.sources, file, len(chart.panels) == 1
    )


def _counts(rows: Iterable[Row]) -> dict[str, int]:
    found = Counter(row["status"] for row in rows)
    return {status: found[status] for status in STATUSES}


def _run_time(rows: Iterable[Row]) -> str:
    return quantity(math.fsum(row["wall_s"] for row in rows if not math.isnan(row["wall_s"])), "s")


def _instruments(rows: Iterable[Row]) -> list[tuple[dict[str, str], int]]:
    """Each instrument found, and with how many runs."""
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for row in rows:
        facts = tuple((key, str(row[f"instrument.{key}"])) for key in notes.INSTRUMENT if row.get(f"instrument.{key}"))
        if facts:
            found[facts] += 1
    return [(dict(facts), count) for facts, count in found.most_common()]
