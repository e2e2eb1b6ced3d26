"""Cost of a training over its time, and the configurations that no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from scalestudy.figures import notes
from scalestudy.figures.build import finished, is_number, point_of
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Row, by, grouped, selected, styles
from scalestudy.spec.labels import column_label, unit_of, value_text
from scalestudy.spec.study import Study

TIME = "time_to_train_s"


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """One point per configuration, labelled with its ranks; the front joins those that are not beaten.

    The vertical axis is the figure's `y`, else the cost where the machine has prices, else device hours.
    """
    runs = selected(rows, figure.where)
    paid = figure.y or ("cost" if any(is_number(row["cost"]) for row in runs) else "device_hours")
    currency = next((row["currency"] for row in runs if row["currency"]), "")
    x = Axis(column_label(TIME), unit_of(TIME), figure.log_x is not False)
    y = Axis(column_label(paid), currency if paid == "cost" else unit_of(paid), figure.log_y is not False)
    groups = grouped(study, figure, runs, figure.series or "strategy", "ranks")
    looks = styles(study, figure.series or "strategy", groups)
    panels = []
    for group in groups:
        lines = [
            Line(label, points, "series", *looks[label], connected=False)
            for label, members in group.lines.items()
            if (points := _points(study, members, paid))
        ]
        every = [point for line in lines for point in line.points]
        drawn = (Line("front", front(every), "front"), *lines) if lines else ()
        panels.append(Panel(group.title, x, y, drawn, blank="" if lines else _why_blank(group.runs, paid)))
    said = []
    if any(panel.lines for panel in panels):
        said.append("Front: no other configuration is both faster and cheaper, by the means. Numbers: ranks")
        said += ["Device time: ranks × time to train"] if paid == "device_hours" else []
    return finished(figure, runs, groups, panels, *said)


def _points(study: Study, members: Sequence[Row], paid: str) -> tuple[Point, ...]:
    points = []
    for runs in by(members, "configuration").values():
        valid = [row for row in runs if row["status"] == "valid" and is_number(row[TIME]) and is_number(row[paid])]
        if valid:
            point = point_of(valid, paid, point_of(valid, TIME, 0.0).y)
            points.append(replace(point, label=value_text(study, "ranks", valid[0]["ranks"])))
    return tuple(sorted(points, key=lambda point: point.x))


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with no other one left of and below them, from left to right."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, point.y)):
        if not kept or point.y < kept[-1].y:
            kept.append(point)
    return tuple(Point(point.x, point.y) for point in kept)


def _why_blank(runs: Sequence[Row], paid: str) -> str:
    if paid == "cost":
        return notes.not_yet(runs) or "No cost: the machine has no prices, or compute is emulated"
    return notes.not_yet(runs) or "No valid run says how long the training takes"
