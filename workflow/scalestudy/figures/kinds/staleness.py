"""How old the weights were that asynchronous updates were computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from scalestudy.analysis.stats import interval
from scalestudy.figures import notes
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import disturbed, grouped, selected
from scalestudy.figures.palette import styles
from scalestudy.results.stored import checked_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.study import Study

MOST_TICKS = 16
Shares = dict[int, float]


def chart(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """One line per configuration: the share of its updates that had each staleness, mean over repeats.

    Runs whose exchange is synchronous have no staleness and are left out.
    """
    asynchronous = {run.id for run in study.runs if not run.spec.strategy.synchronous}
    runs = [row for row in selected(rows, figure.where) if row["run"] in asynchronous]
    taken = {row["run"]: _shares(machine, row["run"]) for row in runs if row["status"] == "valid"}
    groups = grouped(study, figure, runs, figure.series or "strategy", None)
    looks = styles(study, figure.series or "strategy", groups)
    panels = []
    for group in groups:
        lines = []
        for label, members in group.lines.items():
            if points := _points([taken[row["run"]] for row in members if taken.get(row["run"])]):
                marked = tuple(replace(point, disturbed=disturbed(members)) for point in points)
                lines.append(Line(label, marked, "series", *looks[label]))
        highest = max((point.x for line in lines for point in line.points), default=0.0)
        ticks = tuple(float(value) for value in range(int(highest) + 1)) if highest < MOST_TICKS else ()
        panels.append(
            Panel(
                group.title,
                Axis("Staleness", "updates", ticks=ticks),
                Axis("Share of the updates", limits=(0.0, 1.0)),
                tuple(lines),
                blank="" if lines else "No valid run yet: " + notes.missing(group.runs).partition(": ")[2],
            )
        )
    every = [line for panel in panels for line in panel.lines]
    if not runs:
        panels = [Panel("", Axis("Staleness"), Axis("Share"), (), blank="No run with an asynchronous exchange")]
    said = [
        notes.repeats(every),
        notes.emulated(runs),
        "Staleness: updates that others made to the weights while a worker computed its gradient" if every else "",
        *(group.note for group in groups),
        notes.missing(runs),
        *notes.trust(runs),
    ]
    return Chart(figure.title or "", tuple(panels), tuple(filter(None, said)))


def _shares(machine: str, run: str) -> Shares:
    counts = (checked_result(result_file(machine, run), run) or {}).get("staleness") or {}
    total = sum(counts.values())
    return {int(value): count / total for value, count in counts.items()} if total else {}


def _points(repeats: Sequence[Shares]) -> tuple[Point, ...]:
    """From no staleness to the highest seen: what a repeat did not see has the share 0 there."""
    if not repeats:
        return ()
    points = []
    for value in range(max(max(shares) for shares in repeats) + 1):
        single = [shares.get(value, 0.0) for shares in repeats]
        found = interval(single)
        assert found is not None
        points.append(Point(float(value), found.mean, found.low, found.high, found.n, repeats=tuple(single)))
    return tuple(points)
