"""Scaling efficiency over the number of ranks."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from scalestudy.analysis.workload import series_of
from scalestudy.figures.build import SHARED, Drawing, chart_over, selected
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart
from scalestudy.figures.words import listed
from scalestudy.spec.emulated import is_compute_emulated
from scalestudy.spec.study import Study

FORMULA = {
    "weak": "Weak scaling (the batch of a rank is fixed)",
    "strong": "Strong scaling (the global batch is fixed)",
}


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame) -> Chart:
    """From 0 to at least 1.1, with the formula and the base below; ranks that share cores are left out."""
    compared = _compared(study, rows)
    drawing = Drawing("efficiency", "ranks", log_x=True, ideal="one")
    made = chart_over(study, figure, rows[compared], drawing, rows[~compared])
    runs = [row for row in selected(rows[compared], figure.where) if row["status"] == "valid"]
    kinds = listed(FORMULA[kind] for kind in dict.fromkeys(str(row["scaling"]) for row in runs))
    formula = [f"{kinds}: X(N)·N₀ / (N·X(N₀)), X in samples/s without evaluations"] if made.lines else []
    crowded = sorted({int(row["ranks"]) for row in runs if row["oversubscribed"] and not is_compute_emulated(row)})
    left_out = [f"Left out, more threads than cores: {', '.join(map(str, crowded))} ranks"] if crowded else []
    panels = [
        replace(panel, shaded_from=None, shaded_why="") if SHARED in panel.shaded_why else panel
        for panel in made.panels
    ]
    kept = [note for note in made.notes if SHARED not in note]
    return replace(made, panels=tuple(panels), notes=(*formula, *kept[:1], *left_out, *kept[1:]))


def _compared(study: Study, rows: pd.DataFrame) -> pd.Series:
    """Which rows are drawn: not a series that is planned at the base's rank count alone, a dot at 1."""
    series = rows["run"].map(series_of(study))
    several = rows["ranks"].groupby(series).transform("nunique") > 1
    kept = several | (rows["ranks"] > rows["baseline_ranks"])
    return kept if kept.any() else kept | True
