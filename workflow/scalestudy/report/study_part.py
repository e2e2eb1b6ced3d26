"""One study on the report's page: its claims, figures, tables and runs, and how they were made."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from scalestudy.analysis.workload import varied_columns
from scalestudy.figures import notes
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.groups import Row
from scalestudy.figures.kinds import chart_of
from scalestudy.figures.render import render
from scalestudy.figures.style import styled, svg_bytes
from scalestudy.figures.tables import MARKS, said, table_of
from scalestudy.report.answers import answer_of
from scalestudy.report.verdicts import read_verdicts
from scalestudy.results.stored import read_result
from scalestudy.spec.columns import MEASURED, SPEEDS, STATUSES, is_number, kind_of
from scalestudy.spec.labels import column_label, configuration_text, quantity, run_text, value_text
from scalestudy.spec.layout import figure_file, table_file
from scalestudy.spec.study import Run, Study

PIXELS_PER_INCH = 125
"""A third larger than on paper: screens are read from further away."""


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
        "absent": [(run_text(study, keys, row), said(row)) for row in rows if row["status"] != "valid"],
        "trust": [*notes.trust(rows), *unchecked(study, machine, rows)],
        "conditions": _conditions(study, rows),
    }


def _explained(study: Study, machine: str, keys: Sequence[str], run: Run) -> tuple[str, list[str]]:
    """A configuration in words, and what its explained run found, or why it found nothing."""
    result = read_result(machine, run) or {"status": "missing", "reason": "no result yet"}
    if (found := result.get("explained")) is None:
        return configuration_text(study, keys, run.columns), [f"Not explained: {result['reason']}."]
    unseen = [f"{line[0].upper()}{line[1:]}." for line in found["unseen"]]
    return configuration_text(study, keys, run.columns), [*found["sentences"], *unseen]


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
