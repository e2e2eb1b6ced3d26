"""The legend: one entry per series, and one vocabulary for kinds of number in all figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from scalestudy.figures.chart import Chart, Line
from scalestudy.figures.style import (
    COLOURS,
    DASHES,
    FONT,
    HATCHES,
    IDEAL,
    MARKERS,
    PUBLISHED,
    PUBLISHED_DASHES,
    PUBLISHED_MARKERS,
    QUIET,
    text_width,
)  # fmt: skip

HOLLOW = ("extrapolated", "predicted")
EDGE = 0.06
LEGEND_LINE = 0.155
HANDLE = 0.4
GAP = 0.14
ORDER = {"series": 0, "band": 0, "bar": 0, "part": 0, "published": 1, "front": 2, "ideal": 2}


@dataclass(frozen=True)
class LegendEntry:
    """One line of the legend: what it says and how its sample looks."""

    label: str
    look: dict[str, Any] = field(default_factory=dict)
    line: bool = False
    patch: bool = False
    dot: bool = False


def entries(chart: Chart) -> list[LegendEntry]:
    """Series in their order, then published, then guides, then kinds of number. None where there is nothing to tell apart."""
    found: dict[str, Line] = {}
    for line in sorted(chart.lines, key=lambda line: (ORDER[line.role], line.style, line.mark or 0)):
        known = found.get(line.label)
        found[line.label] = line if known is None else replace(line, points=known.points + line.points)
    kinds = kind_entries(chart)
    if len(found) < 2 and not kinds:
        return []
    return [*(_entry(line) for line in found.values()), *kinds]


def _entry(line: Line) -> LegendEntry:
    patch = line.role in ("bar", "part")
    return LegendEntry(line.label, bar_look(line) if patch else looks(line), line.connected and not patch, patch)


def kind_entries(chart: Chart) -> list[LegendEntry]:
    """What marks mean, wherever some number of the figure is not simply measured."""
    points = [
        point for line in chart.lines if line.role not in ("ideal", "front", "published") for point in line.points
    ]
    kinds, emulated = {point.kind for point in points}, any(point.emulated for point in points)
    bars = any(line.role in ("bar", "part") for line in chart.lines)
    if kinds <= {"measured"} and not emulated:
        return []
    grey: dict[str, Any] = {"color": QUIET, "marker": "o", "markeredgecolor": QUIET, "markeredgewidth": 1.1}
    found = []
    plain = any(point.kind == "measured" and not point.emulated for point in points)
    if (plain or len(kinds) > 1) and "measured" in kinds and not bars:
        found.append(LegendEntry("measured", {**grey, "markerfacecolor": QUIET}))
    if "extrapolated" in kinds:
        found.append(LegendEntry("extrapolated", {**grey, "markerfacecolor": "white"}))
    if "predicted" in kinds:
        found.append(
            LegendEntry("predicted", {**grey, "markerfacecolor": "white", "linestyle": PREDICTED_DASH}, line=True)
        )
    if emulated:
        found.append(LegendEntry("emulated compute (dot)", {**grey, "markerfacecolor": QUIET}, dot=True))
    return found


PREDICTED_DASH = (0, (1, 1.6))


def column_widths(shown: Sequence[LegendEntry], room: float) -> list[float]:
    """The widths of the legend's columns, filled row by row: as many as fit."""
    widths = [HANDLE + text_width(entry.label, FONT - 0.5) + GAP for entry in shown]
    for rows in range(1, len(shown) + 1):
        columns = math.ceil(len(shown) / rows)
        fitted = [max(widths[column::columns]) for column in range(columns)]
        if sum(fitted) - GAP <= room:
            return fitted
    return [max(widths, default=0.0)]


def draw_legend(figure: Figure, shown: Sequence[LegendEntry], columns: Sequence[float], top: float) -> None:
    """The legend, drawn by hand, row by row: its size is known before anything is measured."""
    width, height = figure.get_size_inches()
    for index, entry in enumerate(shown):
        row, column = divmod(index, len(columns))
        left = EDGE + sum(columns[:column])
        middle = (top - (row + 0.5) * LEGEND_LINE) / height
        xs = [(left + 0.01) / width, (left + HANDLE - 0.08) / width]
        if entry.patch:
            box = ((left + 0.08) / width, middle - 0.045 / height)
            size = (0.18 / width, 0.09 / height)
            figure.add_artist(Rectangle(box, *size, transform=figure.transFigure, **entry.look))
        else:
            if entry.line:
                figure.add_artist(Line2D(xs, [middle, middle], **{**entry.look, "marker": "none"}))
            figure.add_artist(Line2D([sum(xs) / 2], [middle], **{**entry.look, "linestyle": "none"}))
        if entry.dot:
            figure.add_artist(
                Line2D([sum(xs) / 2], [middle], color="white", marker=".", markersize=3, linestyle="none")
            )
        figure.text((left + HANDLE) / width, middle, entry.label, va="center_baseline", size=FONT - 0.5)


def looks(line: Line) -> dict[str, Any]:
    """Colour, dash and marker of a line; open markers where none of it was measured in full."""
    if line.role in ("ideal", "front"):
        colour = IDEAL if line.role == "ideal" else QUIET
        return {"color": colour, "linewidth": 1.0, "linestyle": "solid", "marker": "none"}
    if line.role == "published":
        return {
            "color": PUBLISHED,
            "linewidth": 0.9,
            "linestyle": PUBLISHED_DASHES[line.style % len(PUBLISHED_DASHES)],
            "marker": PUBLISHED_MARKERS[line.style % len(PUBLISHED_MARKERS)],
            "markersize": 5,
            "markeredgewidth": 1.2,
        }
    colour, mark = COLOURS[line.style % len(COLOURS)], line.style if line.mark is None else line.mark
    kinds = {point.kind for point in line.points}
    return {
        "color": colour,
        "linestyle": PREDICTED_DASH if kinds == {"predicted"} else DASHES[mark % len(DASHES)],
        "marker": MARKERS[mark % len(MARKERS)],
        "markerfacecolor": "white" if kinds and kinds <= set(HOLLOW) else colour,
        "markeredgecolor": colour,
        "markeredgewidth": 1.1,
    }


def bar_look(line: Line, hollow: bool = False) -> dict[str, Any]:
    """Face, edge and hatching of a bar; its hatching tells it apart in grey."""
    colour = COLOURS[line.style % len(COLOURS)]
    return {
        "facecolor": "white" if hollow else colour,
        "edgecolor": colour if hollow else "white",
        "hatch": HATCHES[line.style % len(HATCHES)],
        "linewidth": 0.9 if hollow else 0.4,
    }
