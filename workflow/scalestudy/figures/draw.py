"""One figure of a study, from its summary to three files."""

from __future__ import annotations

from pathlib import Path

from scalestudy.analysis.summarise import read_rows
from scalestudy.errors import UserError, nearest
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart
from scalestudy.figures.kinds import (
    accuracy_over_time,
    bars,
    efficiency,
    lines,
    pareto,
    stacked,
    staleness,
    throughput_over_ranks,
    time_over_ranks,
)
from scalestudy.spec.layout import figure_file
from scalestudy.spec.study import Study

KINDS = {
    "lines": lines.chart,
    "bars": bars.chart,
    "stacked": stacked.chart,
    "pareto": pareto.chart,
    "time_over_ranks": time_over_ranks.chart,
    "throughput_over_ranks": throughput_over_ranks.chart,
    "efficiency": efficiency.chart,
}
OF_RESULTS = {"accuracy_over_time": accuracy_over_time.chart, "staleness": staleness.chart}
"""Kinds that show what only the results hold, not the summary."""


def draw(study: Study, machine: str, name: str) -> list[Path]:
    """Write a figure as SVG, PDF and PNG; returns their paths. The same runs give the same bytes."""
    from scalestudy.figures.render import render
    from scalestudy.figures.style import save, styled

    chart = chart_of(study, machine, figure_named(study, name))
    with styled():
        return save(render(chart), figure_file(machine, study.scale, study.name, name))


def chart_of(study: Study, machine: str, figure: FigureSpec) -> Chart:
    """What a figure shows, from runs.parquet and, for curves and shares, the results."""
    rows = read_rows(study, machine)
    if figure.kind in OF_RESULTS:
        return OF_RESULTS[figure.kind](study, figure, rows, machine)
    return KINDS[figure.kind](study, figure, rows)


def figure_named(study: Study, name: str) -> FigureSpec:
    """The figure of that name; raises UserError naming those there are."""
    known = {figure.file_name: figure for figure in study.figures}
    if name not in known:
        raise UserError(
            f"study `{study.name}` has no figure `{name}`", f"config/studies/{study.name}.yaml", nearest(name, known)
        )
    return known[name]
