"""Everything of some studies on one self-contained page: the answers first, then each study."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from scalestudy.analysis.rows import read_rows
from scalestudy.analysis.workload import varied_columns
from scalestudy.claims import basis
from scalestudy.errors import visible
from scalestudy.figures import notes
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.groups import Row, selected
from scalestudy.figures.kinds import chart_of
from scalestudy.figures.render import render
from scalestudy.figures.style import styled, svg_bytes
from scalestudy.figures.tables import MARKS, reason_text, table_of
from scalestudy.files import write_text
from scalestudy.report.answers import answer_of, first_answers, this_machine, warnings_of
from scalestudy.report.verdicts import read_verdicts
from scalestudy.results.parts import PARTS
from scalestudy.results.stored import read_result
from scalestudy.site_fault import CHANGES
from scalestudy.spec.columns import MEASURED, SPEEDS, STATUSES, Column, is_number, kind_of
from scalestudy.spec.labels import column_label, configuration_text, quantity, run_text, value_text
from scalestudy.spec.layout import STUDIES, config_of, figure_file, report_file, table_file
from scalestudy.spec.study import Run, Study, left_out_of

PIXELS_PER_INCH = 125
"""A third larger than on paper: screens are read from further away."""


def write_report(studies: Sequence[Study], machine: str, scale: str, out: Path | str) -> Path:
    """Write the report of `studies` to `out`; returns the path."""
    rows = {study.name: selected(read_rows(study, machine), {}) for study in studies}
    runs = {row["run"]: row for study_rows in rows.values() for row in study_rows}
    parts = [study_part(study, machine, rows[study.name]) for study in studies]
    claims = [(part["study"], claim) for part in parts for claim in part["claims"]]
    answers, left_out = first_answers(studies, machine)
    environment = templates()
    changes = os.environ.get(CHANGES, "").splitlines()
    again = f" {shlex.quote(f'set={json.dumps(changes)}')}" if changes else ""
    names = [study.name for study in studies]
    environment.globals["redraw"] = f" --config{again}" if again else ""
    page = environment.get_template("page.html.j2").render(
        machine=machine,
        scale=scale,
        config=config_of(machine, scale) + again,
        this_machine=this_machine(studies, machine),
        answers=answers,
        left_out=[*left_out, *left_out_of(studies)],
        warnings=warnings_of(studies, machine),
        parts=parts,
        claims=sorted(claims, key=lambda pair: list(basis.MARKS).index(pair[1].verdict)),
        tallies=basis.tallies((claim.basis, claim.origin, claim.verdict) for _, claim in claims),
        bases=basis.BASES,
        counts=counts_of(runs.values()),
        statuses=STATUSES,
        planned=len(runs),
        run_time=quantity(math.fsum(row["wall_s"] for row in runs.values() if not math.isnan(row["wall_s"])), "s"),
        instruments=_instruments(runs.values()),
        instrument_names=notes.INSTRUMENT,
        columns=_shown_columns(parts),
        of_studies=f" studies={','.join(names)}" if len(names) < len([*STUDIES.glob("*.yaml")]) else "",
        report_file=str(report_file(machine, scale)),
    )
    write_text(out, page)
    return Path(out)


COLUMNS_OF_KINDS: dict[str, tuple[str, ...]] = {
    "stacked": PARTS,
    "accuracy_over_time": ("accuracy", "auroc"),
    "staleness": ("staleness",),
}
"""Columns that kinds of figure without axes of columns draw."""


def _shown_columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """The columns that figures and tables show, whose meanings the page ends with."""
    shown = {value for part in parts for table, _ in part["tables"] for value in table.values}
    for figure in (figure for part in parts for figure in part["study"].figures):
        shown |= {*figure.axes, *COLUMNS_OF_KINDS.get(figure.kind, ())}
    return {name: column for name, column in MEASURED.items() if name in shown}


def _instruments(rows: Iterable[Row]) -> list[tuple[dict[str, str], int]]:
    """Each instrument found, and with how many runs."""
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    for row in rows:
        facts = tuple((key, str(row[f"instrument.{key}"])) for key in notes.INSTRUMENT if row.get(f"instrument.{key}"))
        if facts:
            counts[facts] += 1
    return [(dict(facts), count) for facts, count in counts.most_common()]


# One study on the page


def study_part(study: Study, machine: str, rows: Sequence[Row]) -> dict[str, Any]:
    """All that the page says of a study, by the names in its template; from its rows and the verdicts on its claims."""
    keys = varied_columns(study)
    files = [str(table_file(machine, study.scale, study.name, table.name, "md")) for table in study.tables]
    return {
        "study": study,
        "counts": counts_of(rows),
        "claims": read_verdicts(study, machine),
        "explained": [_explained(study, machine, keys, run) for run in study.explained],
        "answer": answer_of(study, machine),
        "figures": [_figure(study, machine, figure) for figure in study.figures],
        "tables": [(table_of(study, machine, table), file) for table, file in zip(study.tables, files, strict=True)],
        "run_keys": [column_label(key) for key in keys],
        "runs": {row["run"]: _run(study, keys, row) for row in rows},
        "absent": [(run_text(study, keys, row), reason_text(row)) for row in rows if row["status"] != "valid"],
        "trust": [*notes.trust(rows), *unchecked(study, machine, rows)],
        "conditions": _conditions(study, rows),
    }


def _explained(study: Study, machine: str, keys: Sequence[str], run: Run) -> tuple[str, list[str]]:
    """A configuration in words, and what its explained run found, or why it found nothing."""
    result = read_result(machine, run) or {"status": "missing", "reason": "no result yet"}
    if (explanation := result.get("explained")) is None:
        return configuration_text(study, keys, run.columns), [f"Not explained: {result['reason']}."]
    unseen = [f"{line[0].upper()}{line[1:]}." for line in explanation["unseen"]]
    return configuration_text(study, keys, run.columns), [*explanation["sentences"], *unseen]


def counts_of(rows: Iterable[Row]) -> dict[str, int]:
    """How many runs have each status."""
    counts = Counter(row["status"] for row in rows)
    return {status: counts[status] for status in STATUSES}


def unchecked(study: Study, machine: str, rows: Sequence[Row]) -> list[str]:
    """What could not be checked of valid runs, with how many."""
    valid = [row for row in rows if row["status"] == "valid"]
    runs = {run.id: run for run in study.runs}
    results = (read_result(machine, runs[row["run"]]) or {} for row in valid if row.get("unchecked"))
    counts = Counter(what for result in results for what in result.get("unchecked", []))
    return [f"Not checked in {count} of {len(valid)} valid runs: {what.rstrip('.')}" for what, count in counts.items()]


def _conditions(study: Study, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Dates and emulation of a study's runs; the page ends with their instruments."""
    begun = sorted({_minute(row) for row in rows if row["status"] == "valid"} - {""})
    facts = [
        ("Measured", " to ".join(dict.fromkeys((*begun[:1], *begun[-1:])))),
        ("Emulated", notes.emulated(rows) or "nothing"),
        ("Left out", "; ".join(study.left_out)),
    ]
    return [(name, value) for name, value in facts if value]


def _minute(row: Row) -> str:
    return str(row.get("started") or "")[:16].replace("T", " ")


def _run(study: Study, keys: Sequence[str], row: Row) -> dict[str, Any]:
    """One run; `cells` are the values that tell it from the others."""
    column = next((name for name in SPEEDS if is_number(row.get(name))), None)
    return {
        "run": row["run"],
        "anchor": f"{study.name}-{row['run']}",
        "text": run_text(study, keys, row),
        "cells": [value_text(study, key, row.get(key)) for key in keys],
        "repeat": row["repeat"] + 1,
        "status": row["status"] + (", disturbed" if row.get("disturbed") else ""),
        "speed": MARKS.get(kind_of(row, column), "") + quantity(row[column], MEASURED[column].unit) if column else "–",
        "started": _minute(row),
    }


def _figure(study: Study, machine: str, figure: FigureSpec) -> dict[str, Any]:
    """The figure without its title, which stands below it with caption and notes.

    Each is an image of its own, so that identifiers of several cannot clash on one page.
    """
    chart = chart_of(study, machine, figure)
    with styled():
        drawn = render(replace(chart, title=""))
        svg = svg_bytes(drawn)
    return {
        "title": notes.title_of(chart),
        "image": f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
        "width": round(float(drawn.get_size_inches()[0]) * PIXELS_PER_INCH),
        "caption": notes.caption(chart),
        # The caption explains the mark, and above the figures stands how many runs were disturbed.
        "notes": [note for note in chart.notes if not note.startswith(notes.DISTURBED)],
        "sources": chart.sources,
        "file": str(figure_file(machine, study.scale, study.name, figure.file_name)),
        "narrow": len(chart.panels) == 1,
    }


# Text on the page


def templates() -> jinja2.Environment:
    """The templates of this folder, which escape text and show control characters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
    environment.filters.update(marked=marked, whole=whole, capital=lambda text: f"{text[:1].upper()}{text[1:]}")
    return environment


def marked(text: str) -> Markup:
    """`text` for HTML, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(visible(text)))))


def whole(text: str) -> Markup:
    """A sentence for HTML, of which no line ends inside a number, its interval or its unit."""
    return marked(
        re.sub(r"(?<=\d),? (?=[±%\d])|(?<=±) ", lambda space: space[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    )
