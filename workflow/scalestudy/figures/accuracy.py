"""Accuracy on held-out data over the time since training began."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from scalestudy.analysis.stats import interval
from scalestudy.figures import notes
from scalestudy.figures.build import SHARE, finished
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Row, disturbed, grouped, selected, styles
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
    evaluations = {row["run"]: _evaluations(machine, row["run"]) for row in runs if row["status"] == "valid"}
    scores = {key for several in evaluations.values() for one in several for key in one if one[key] is not None}
    score = "auroc" if "accuracy" not in scores and "auroc" in scores else "accuracy"
    x = Axis("Time since training began", "s", bool(figure.log_x))
    y = Axis("Held-out accuracy" if score == "accuracy" else "Mean AUROC", "", bool(figure.log_y), limits=SHARE)
    groups = grouped(study, figure, runs, figure.series or "strategy", None)
    looks = styles(study, figure.series or "strategy", groups)
    panels = []
    for group in groups:
        lines = []
        for label, members in group.lines.items():
            repeats = [evaluations[row["run"]] for row in members if row["run"] in evaluations]
            if points := _curve(repeats, score, disturbed(members)):
                lines.append(Line(label, points, "band", *looks[label]))
        panels.append(Panel(group.title, x, y, tuple(lines), blank="" if lines else _why_blank(group.runs)))
    return finished(figure, runs, groups, panels or [Panel("", x, y, (), blank=_why_blank(runs))])


def _evaluations(machine: str, run: str) -> Evaluations:
    evaluations: Evaluations = (checked_result(result_file(machine, run), run) or {}).get("evaluations") or []
    return evaluations


def _curve(repeats: Sequence[Evaluations], score: str, disturbed: int) -> tuple[Point, ...]:
    """Mean time and mean score of each evaluation, over the repeats that have it."""
    by_step: dict[int, Evaluations] = {}
    for evaluation in (one for evaluations in repeats for one in evaluations if one.get(score) is not None):
        by_step.setdefault(evaluation["step"], []).append(evaluation)
    points = []
    for _, several in sorted(by_step.items()):
        values = [float(evaluation[score]) for evaluation in several]
        time = math.fsum(float(evaluation["time_s"]) for evaluation in several) / len(several)
        mean = interval(values)
        assert mean is not None
        points.append(Point(time, mean.mean, mean.low, mean.high, mean.n, repeats=tuple(values), disturbed=disturbed))
    return tuple(sorted(points, key=lambda point: point.x))


def _why_blank(runs: Sequence[Row]) -> str:
    if not runs:
        return "No run with real compute: emulated compute learns nothing"
    return notes.not_yet(runs) or "No valid run was evaluated on held-out data"
