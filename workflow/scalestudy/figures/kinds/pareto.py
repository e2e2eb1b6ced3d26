"""What a training costs over how long it takes, and which configurations no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from scalestudy.figures import notes
from scalestudy.figures.build import is_number, point_of
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Group, by, grouped, selected
from scalestudy.figures.palette import styles
from scalestudy.figures.words import column_label, unit_of, value_text
from scalestudy.spec.study import Study

TIME = "time_to_train_s"


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame) -> Chart:
    """One point per configuration, named by its ranks; the front joins those that are not beaten.

    What is paid is the figure's `y`, else the cost where the machine has prices, else device hours.
    """
    runs = selected(rows, figure.where)
    series = figure.series or "strategy"
    paid = figure.y or ("cost" if any(is_number(row["cost"]) for row in runs) else "device_hours")
    currency = next((row["currency"] for row in runs if row["currency"]), "")
    unit = currency if paid == "cost" else unit_of(paid)
    groups = grouped(study, figure, runs, series, "ranks")
    looks = styles(study, series, groups)
    panels = [_panel(study, figure, group, looks, paid, unit) for group in groups]
    lines = [line for panel in panels for line in panel.lines]
    said = [
        notes.repeats(lines),
        notes.extrapolated(lines),
        notes.emulated(runs),
        *(group.note for group in groups),
        "Front: no other configuration is both faster and cheaper, by the means. Numbers: ranks" if lines else "",
        "Device time: ranks × time to train" if lines and paid == "device_hours" else "",
        notes.missing(runs),
        *notes.trust(runs),
    ]
    return Chart(figure.title or "", tuple(panels), tuple(filter(None, said)))


def _panel(
    study: Study, figure: FigureSpec, group: Group, looks: dict[str, tuple[int, int]], paid: str, unit: str
) -> Panel:
    lines = []
    for label, members in group.lines.items():
        if points := _points(study, by(members, "configuration").values(), paid):  # type: ignore[arg-type]
            lines.append(Line(label, points, "series", *looks[label], connected=False))
    every = [point for line in lines for point in line.points]
    drawn = (Line("front", front(every), "front"), *lines) if lines else ()
    return Panel(
        group.title,
        Axis(column_label(TIME), unit_of(TIME), figure.log_x is not False),
        Axis(column_label(paid), unit, figure.log_y is not False),
        drawn,
        blank="" if lines else _why_blank(group, paid),
    )


def _points(study: Study, configurations: Sequence[list[dict[str, object]]], paid: str) -> tuple[Point, ...]:
    points = []
    for runs in configurations:
        valid = [row for row in runs if row["status"] == "valid" and is_number(row[TIME]) and is_number(row[paid])]
        if valid:
            place = point_of(valid, TIME, 0.0).y
            name = value_text(study, "ranks", valid[0]["ranks"])
            points.append(replace(point_of(valid, paid, place), label=name))
    return tuple(sorted(points, key=lambda point: point.x))


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points that no other one is left of and below, from left to right."""
    found: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x, point.y)):
        if not found or point.y < found[-1].y:
            found.append(point)
    return tuple(Point(point.x, point.y) for point in found)


def _why_blank(group: Group, paid: str) -> str:
    if not any(row["status"] == "valid" for row in group.runs):
        return "No valid run yet: " + notes.missing(group.runs).partition(": ")[2]
    if paid == "cost":
        return "No cost: the machine has no prices, or compute is emulated"
    return "No valid run says how long the training takes"
