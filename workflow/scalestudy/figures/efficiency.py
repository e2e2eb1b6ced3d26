"""Scaling efficiency over the number of ranks."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from scalestudy.analysis.scaling import series_of
from scalestudy.figures.build import Drawing, chart_over, selected
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart
from scalestudy.figures.words import listed
from scalestudy.spec.study import Study

FORMULA = {"weak": "Weak scaling: X(N)·N₀ / (N·X(N₀))", "strong": "Strong scaling: T(N₀)·N₀ / (N·T(N))"}


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame) -> Chart:
    """From 0 to at least 1.1, with the formula and N0 below; ranks that share cores are left out."""
    rows = _with_baseline(study, rows)
    made = chart_over(study, figure, rows, Drawing("efficiency", "ranks", log_x=True, ideal="one"))
    runs = [row for row in selected(rows, figure.where) if row["status"] == "valid"]
    formula = listed(FORMULA[kind] for kind in dict.fromkeys(str(row["scaling"]) for row in runs))
    relative = [f"{formula}, {_baselines(made)}"] if made.lines else []
    crowded = sorted({int(row["ranks"]) for row in runs if row["oversubscribed"] and not row["emulated"]})
    left_out = [f"Left out, more threads than cores: {', '.join(map(str, crowded))} ranks"] if crowded else []
    kept = [note for note in made.notes if not note.startswith("Shaded")]
    panels = [replace(panel, shaded_from=None) for panel in made.panels]
    return replace(made, panels=tuple(panels), notes=(*relative, *kept[:1], *left_out, *kept[1:]))


def _baselines(chart: Chart) -> str:
    """`N₀ = 1`, and each line that begins at more ranks."""
    begins = [(panel.title, line.label, int(line.points[0].x)) for panel in chart.panels for line in panel.lines]
    fewest = min(ranks for _, _, ranks in begins)
    others = [
        f"{ranks} for {', '.join(filter(None, (label, title)))}"
        for title, label, ranks in begins
        if ranks > fewest and label != "ideal"
    ]
    return f"N₀ = {fewest}" + (f", but {listed(others)}" if others else "")


def _with_baseline(study: Study, rows: pd.DataFrame) -> pd.DataFrame:
    """Without the series that are planned at one rank count only: there is nothing to compare them with."""
    series = rows["run"].map(series_of(study))
    several = rows["ranks"].groupby(series).transform("nunique") > 1
    return rows[several] if several.any() else rows
