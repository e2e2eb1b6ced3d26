"""Accuracy on held-out data over the time since training began."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from scalestudy.analysis.stats import interval
from scalestudy.figures import notes
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Row, disturbed, grouped, selected
from scalestudy.figures.palette import styles
from scalestudy.results.stored import checked_result
from scalestudy.spec.emulated import is_compute_emulated
from scalestudy.spec.layout import result_file
from scalestudy.spec.study import Study

Evaluations = list[dict[str, Any]]


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """One line per configuration: means over repeats at each evaluation, and a band of their 95 % intervals.

    Runs with emulated compute learn nothing and are left out.
    """
    runs = [row for row in selected(rows, figure.where) if not is_compute_emulated(row)]
    taken = {row["run"]: _evaluations(machine, row["run"]) for row in runs if row["status"] == "valid"}
    measure = next(
        (key for key in ("accuracy", "auroc") if any(_has(found, key) for found in taken.values())), "accuracy"
    )
    groups = grouped(study, figure, runs, figure.series or "strategy", None)
    looks = styles(study, figure.series or "strategy", groups)
    panels = []
    for group in groups:
        lines = []
        for label, members in group.lines.items():
            if points := _curve([taken[row["run"]] for row in members if row["run"] in taken], measure):
                marked = tuple(replace(point, disturbed=disturbed(members)) for point in points)
                lines.append(Line(label, marked, "band", *looks[label]))
        panels.append(
            Panel(
                group.title,
                Axis("Time since training began", "s", bool(figure.log_x)),
                Axis("Held-out accuracy" if measure == "accuracy" else "Mean AUROC", "", bool(figure.log_y)),
                tuple(lines),
                blank="" if lines else _why_blank(group.runs),
            )
        )
    every = [line for panel in panels for line in panel.lines]
    said = [notes.repeats(every), *(group.note for group in groups), notes.missing(runs), *notes.trust(runs)]
    if not runs:
        panels = [Panel("", Axis("Time", "s"), Axis("Held-out accuracy"), (), blank=_why_blank(runs))]
    return Chart(figure.title or "", tuple(panels), tuple(filter(None, said)))


def _evaluations(machine: str, run: str) -> Evaluations:
    found: Evaluations = (checked_result(result_file(machine, run), run) or {}).get("evaluations") or []
    return found


def _has(evaluations: Evaluations, key: str) -> bool:
    return any(evaluation.get(key) is not None for evaluation in evaluations)


def _curve(repeats: Sequence[Evaluations], measure: str) -> tuple[Point, ...]:
    """Mean time and mean accuracy of each evaluation, over the repeats that made it."""
    points = []
    steps = sorted({evaluation["step"] for evaluations in repeats for evaluation in evaluations})
    for step in steps:
        at = [e for evaluations in repeats for e in evaluations if e["step"] == step and e.get(measure) is not None]
        if at:
            values = [float(evaluation[measure]) for evaluation in at]
            time = math.fsum(float(evaluation["time_s"]) for evaluation in at) / len(at)
            found = interval(values)
            assert found is not None
            points.append(Point(time, found.mean, found.low, found.high, found.n, repeats=tuple(values)))
    return tuple(sorted(points, key=lambda point: point.x))


def _why_blank(runs: Sequence[Row]) -> str:
    if not runs:
        return "No run with real compute: emulated compute learns nothing"
    if any(row["status"] == "valid" for row in runs):
        return "No valid run was evaluated on held-out data"
    return "No valid run yet: " + notes.missing(runs).partition(": ")[2]
