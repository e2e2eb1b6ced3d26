"""The parts of a step, stacked: where its time goes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from scalestudy.analysis.stats import interval
from scalestudy.figures import notes
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Group, Row, by, grouped, selected
from scalestudy.figures.words import column_label, listed, number, value_text
from scalestudy.spec.emulated import is_compute_emulated
from scalestudy.spec.study import Study

PARTS = ("data_s", "convert_s", "forward_s", "backward_s", "exchange_s", "optimiser_s")
ORDER = ("data_s", "convert_s", "compute_s", "forward_s", "backward_s", "exchange_s", "optimiser_s")
"""From the left; the place of a part here is its look in every figure."""
TOGETHER = ("forward_s", "backward_s")
COMPUTE = "compute_s"
"""Forward and backward as one part, of runs that do not tell them apart."""
CLOSE = 0.02
"""Parts that sum to the step within this share are said to."""


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame) -> Chart:
    """For each configuration a bar of the mean seconds of each part; configurations are named beside their bars.

    Means are arithmetic here, so that what is stacked sums to the mean step.
    """
    assert figure.x is not None
    runs = selected(rows, figure.where)
    groups = grouped(study, figure, runs, figure.series or "strategy", figure.x)
    panels = [_panel(study, figure.x, group) for group in groups]
    valid = [row for row in runs if row["status"] == "valid"]
    said = [
        _counts(panels),
        notes.emulated(runs),
        *(group.note for group in groups),
        *_sums(valid),
        _overlapped(valid),
        notes.missing(runs),
        *notes.trust(runs),
    ]
    return Chart(figure.title or "", tuple(panels), tuple(filter(None, said)))


def _panel(study: Study, x: str, group: Group) -> Panel:
    names: list[str] = []
    points: dict[str, list[Point]] = {}
    for label, members in group.lines.items():
        for runs in by(members, "configuration").values():
            valid = [row for row in runs if row["status"] == "valid"]
            if not valid:
                continue
            place = float(len(names))
            names.append(", ".join(filter(None, (label, value_text(study, x, valid[0].get(x), named=True)))))
            for part, seconds in parts_of(valid).items():
                emulated, disturbed = (
                    any(map(is_compute_emulated, valid)),
                    sum(bool(row["disturbed"]) for row in valid),
                )
                points.setdefault(part, []).append(
                    Point(place, seconds, n=len(valid), emulated=emulated, disturbed=disturbed)
                )
    return Panel(
        group.title,
        Axis("", categories=tuple(names)),
        Axis("Time per step", "s"),
        tuple(
            Line(column_label(part), tuple(points[part]), "part", style)
            for style, part in enumerate(ORDER)
            if part in points
        ),
        blank="" if names else "No valid run yet: " + notes.missing(group.runs).partition(": ")[2],
    )


def parts_of(runs: Sequence[Row]) -> dict[str, float]:
    """Mean seconds of each part over the runs that have it; forward and backward together where no run tells them apart."""
    found = {}
    for part in (*PARTS, COMPUTE):
        mean = interval([row[part] for row in runs if row.get(part) is not None])
        if mean is not None:
            found[part] = mean.mean
    if any(part in found for part in TOGETHER):
        found.pop(COMPUTE, None)
    return found


def step_of(row: Row) -> float:
    """The mean step of a run, seconds: its global batch over its throughput."""
    return float(row["batch.global"]) / float(row["throughput_samples_per_s"])


def _sums(valid: Sequence[Row]) -> list[str]:
    """Whether the parts make up the mean step, and how far they miss it."""
    shares = [
        sum(parts_of([row]).values()) / step_of(row)
        for row in valid
        if row["throughput_samples_per_s"] > 0 and parts_of([row])
    ]
    if not shares:
        return []
    low, high = min(shares), max(shares)
    if low >= 1 - CLOSE and high <= 1 + CLOSE:
        return ["The parts sum to the mean step"]
    shown = dict.fromkeys((number(100 * low), number(100 * high)))
    return [f"The parts sum to {' to '.join(shown)} % of the mean step"]


def _overlapped(valid: Sequence[Row]) -> str:
    """Which runs have an exchange that is not a part of its own."""
    hidden = dict.fromkeys(
        str(row["strategy"]).replace("_", " ")
        for row in valid
        if row["ranks"] > 1 and (row.get("exchange_s") is None or math.isnan(row["exchange_s"]))
    )
    return f"Exchange overlapped with, and part of, the backward pass: {listed(hidden, 4)}" if hidden else ""


def _counts(panels: Sequence[Panel]) -> str:
    counts = {point.n for panel in panels for line in panel.lines for point in line.points}
    if not counts:
        return ""
    shown = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"n = {shown} run{'' if counts == {1} else 's'} per bar; arithmetic means"
