"""Age of the weights that asynchronous updates were computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from scalestudy.analysis.stats import interval
from scalestudy.figures import notes
from scalestudy.figures.build import SHARE, finished
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import disturbed, grouped, selected, styles
from scalestudy.results.stored import checked_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.study import Study

MAX_BARS = 16
Shares = dict[int, float]


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """Bars per configuration, of many values a line: the share of its updates with each staleness, mean over repeats.

    Runs with a synchronous exchange have no staleness and are left out.
    """
    asynchronous = {run.id for run in study.runs if not run.spec.strategy.synchronous}
    runs = [row for row in selected(rows, figure.where) if row["run"] in asynchronous]
    shares = {row["run"]: _shares(machine, row["run"]) for row in runs if row["status"] == "valid"}
    groups = grouped(study, figure, runs, figure.series or "strategy", None)
    looks = styles(study, figure.series or "strategy", groups)
    y = Axis("Share of the updates", limits=SHARE)
    panels = []
    for group in groups:
        lines = []
        for label, members in group.lines.items():
            repeats = [shares[row["run"]] for row in members if shares.get(row["run"])]
            if points := _points(repeats, disturbed(members)):
                lines.append(Line(label, points, "series", *looks[label]))
        highest = int(max((point.x for line in lines for point in line.points), default=0.0))
        x = Axis("Staleness", "updates")
        if highest < MAX_BARS:
            lines = [replace(line, role="bar") for line in lines]
            x = replace(x, categories=tuple(map(str, range(highest + 1))))
        panels.append(Panel(group.title, x, y, tuple(lines), blank="" if lines else notes.not_yet(group.runs)))
    meaning = "Staleness: updates that others made to the weights while a worker computed its gradient"
    none = [Panel("", Axis("Staleness"), y, (), blank="No run with an asynchronous exchange")]
    return finished(figure, runs, groups, panels or none, meaning if any(shares.values()) else "")


def _shares(machine: str, run: str) -> Shares:
    counts = (checked_result(result_file(machine, run), run) or {}).get("staleness") or {}
    total = sum(counts.values())
    return {int(value): count / total for value, count in counts.items()} if total else {}


def _points(repeats: Sequence[Shares], disturbed: int) -> tuple[Point, ...]:
    """From staleness 0 to the highest; a value that a repeat lacks has the share 0 there."""
    points = []
    for value in range(max((max(shares) for shares in repeats), default=-1) + 1):
        single = [shares.get(value, 0.0) for shares in repeats]
        mean = interval(single)
        assert mean is not None
        ends = mean.low, mean.high, mean.n
        points.append(Point(float(value), mean.mean, *ends, repeats=tuple(single), disturbed=disturbed))
    return tuple(points)
