"""Kinds of figure: a kind is a row of KINDS, a drawing, the function that makes its chart, or the name of one in another module."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pandas as pd

from scalestudy.analysis.rows import read_rows
from scalestudy.analysis.workload import series_of
from scalestudy.figures.build import Drawing, chart_over
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart
from scalestudy.figures.groups import selected
from scalestudy.figures.notes import caption_file
from scalestudy.files import write_text
from scalestudy.spec.columns import is_number
from scalestudy.spec.labels import listed
from scalestudy.spec.layout import figure_file
from scalestudy.spec.run import is_compute_emulated
from scalestudy.spec.study import Study

FORMULA = {
    "weak": "Weak scaling (the batch of a rank is fixed)",
    "strong": "Strong scaling (the global batch is fixed)",
}


def draw(study: Study, machine: str, name: str) -> list[Path]:
    """Write a figure as SVG, PDF and PNG, and its caption; returns their paths. The same runs give the same bytes."""
    from scalestudy.figures.render import render
    from scalestudy.figures.style import save, styled

    chart = chart_of(study, machine, study.figure(name))
    with styled():
        files = save(render(chart), figure_file(machine, study.scale, study.name, name))
    text = figure_file(machine, study.scale, study.name, name, "txt")
    write_text(text, caption_file(chart))
    return [*files, text]


def chart_of(study: Study, machine: str, figure: FigureSpec) -> Chart:
    """Chart of a figure, from runs.parquet and, for curves and shares, the results."""
    kind, rows = KINDS[figure.kind], read_rows(study, machine)
    if isinstance(kind, str):
        module, _, function = kind.partition(".")
        kind = getattr(import_module(f"scalestudy.figures.{module}"), function)
    return chart_over(study, figure, rows, kind) if isinstance(kind, Drawing) else kind(study, figure, rows, machine)


def _efficiency(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """Efficiency with its formula; ranks that share cores are left out, and so are series at the base's ranks alone."""
    several = rows["ranks"].groupby(rows["run"].map(series_of(study))).transform("nunique") > 1
    compared = several | (rows["ranks"] > rows["baseline_ranks"])
    drawn = rows[compared] if compared.any() else rows
    runs = [row for row in selected(drawn, figure.where) if row["status"] == "valid"]
    scaling = dict.fromkeys(FORMULA[str(row["scaling"])] for row in runs if is_number(row["efficiency"]))
    formula = f"{listed(scaling)}: X(N)·N₀ / (N·X(N₀)), X in samples/s without evaluations" if scaling else ""
    crowded = sorted({int(row["ranks"]) for row in runs if row["oversubscribed"] and not is_compute_emulated(row)})
    left_out = f"Left out, more threads than cores: {', '.join(map(str, crowded))} ranks" if crowded else ""
    return chart_over(study, figure, drawn, Drawing(log_x=True, ideal="one"), formula, left_out, every=rows)


KINDS: dict[str, Drawing | str | Callable[[Study, FigureSpec, pd.DataFrame, str], Chart]] = {
    "lines": Drawing(),
    "bars": Drawing(bars=True),
    "time_over_ranks": Drawing(log_x=True, log_y=True, ideal="time"),
    "throughput_over_ranks": Drawing(log_x=True, log_y=True, ideal="throughput"),
    "efficiency": _efficiency,
    "stacked": "stacked.chart",
    "accuracy_over_time": "of_results.accuracy",
    "staleness": "of_results.staleness",
    "timeline": "timeline.chart",
}
