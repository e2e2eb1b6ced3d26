"""Mean seconds of each part of a step, stacked."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from scalestudy.figures import notes
from scalestudy.figures.build import finished
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Group, Row, by, disturbed, grouped, selected
from scalestudy.results.parts import COMPUTE, PARTS, parts_of
from scalestudy.spec.columns import is_number
from scalestudy.spec.labels import column_label, listed, number, value_text
from scalestudy.spec.run import emulated_parts
from scalestudy.spec.study import Study

MAX_MISS = 0.02
"""Share of the step by which the parts' sum may miss it."""


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """A bar per configuration, named beside it. Means are arithmetic, so that the parts sum to the mean step."""
    assert figure.x is not None
    runs = selected(rows, figure.where)
    valid = [row for row in runs if row["status"] == "valid"]
    groups = grouped(study, figure, runs, figure.x)
    panels = [_panel(study, figure.x, group) for group in groups]
    return finished(figure, runs, groups, panels, _sums(valid), _overlapped(valid))


def _panel(study: Study, x: str, group: Group) -> Panel:
    names: list[str] = []
    points: dict[str, list[Point]] = {}
    for label, members in group.lines.items():
        for runs in by(members, "configuration").values():
            valid = [row for row in runs if row["status"] == "valid"]
            if not valid:
                continue
            emulated, place = emulated_parts(valid), float(len(names))
            parts = (label, value_text(study, x, valid[0].get(x), named=True))
            names.append(", ".join(dict.fromkeys(filter(None, parts))))
            for part, seconds in parts_of(valid).items():
                point = Point(place, seconds, n=len(valid), emulated=emulated, disturbed=disturbed(valid))
                points.setdefault(part, []).append(point)
    lines = [
        Line(column_label(part), tuple(points[part]), "part", style)
        for style, part in enumerate(PARTS)
        if part in points
    ]
    blank = "" if lines else notes.not_yet(group.runs) or "No part of a step was measured"
    return Panel(group.title, Axis("", categories=tuple(names)), Axis("Time per step", "s"), tuple(lines), blank=blank)


def _sums(valid: Sequence[Row]) -> str:
    """Share of the mean step, global batch over throughput or as a program has it, that the parts make up."""
    shares = []
    for row in valid:
        is_known = row["throughput_samples_per_s"] > 0 and is_number(row.get("batch.global"))
        step_s = row["batch.global"] / row["throughput_samples_per_s"] if is_known else row["step_time_s"]
        if is_number(step_s) and step_s and (parts := parts_of([row])):
            shares.append(sum(parts.values()) / step_s)
    if not shares:
        return ""
    low, high = min(shares), max(shares)
    if low >= 1 - MAX_MISS and high <= 1 + MAX_MISS:
        return "The parts sum to the mean step"
    ends = dict.fromkeys((number(100 * low), number(100 * high)))
    return f"The parts sum to {' to '.join(ends)} % of the mean step"


def _overlapped(valid: Sequence[Row]) -> str:
    """Strategies whose exchange is not a part of its own."""
    # Of a program nothing is known of either.
    several = [row for row in valid if row["ranks"] > 1 and is_number(row.get(COMPUTE))]
    hidden = (row["strategy"] for row in several if not is_number(row.get("exchange_s")))
    names = dict.fromkeys(str(name).replace("_", " ") for name in hidden)
    return f"Exchange overlapped with, and part of, the backward pass: {listed(names, 4)}" if names else ""
