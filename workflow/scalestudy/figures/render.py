"""A chart, drawn. Matplotlib's constrained layout finds room for titles, labels and the legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation, Transform

from scalestudy.analysis.stats import FEWEST
from scalestudy.figures.axes import category_names, in_readable_units, is_stacked, set_axes, share_ranges
from scalestudy.figures.chart import Chart, Line, Panel, Point
from scalestudy.figures.notes import DISTURBED
from scalestudy.figures.style import (
    FONT,
    HOLLOW,
    INK,
    PANEL_WIDTH,
    QUIET,
    SHADE,
    bar_look,
    line_look,
    new_figure,
    text_width,
    wrapped,
)  # fmt: skip

MAX_COLUMNS = 3
PLOT_HEIGHT = 2.5
"""Inches of a panel with its labels."""
TEXT_LINE = 0.16
LEGEND_HANDLE = 0.48
"""Inches of a legend's entry beside its text."""
ORDER = {"series": 0, "band": 0, "bar": 0, "part": 0, "published": 1, "front": 2, "ideal": 2}
MAX_MARKS = 15
"""Marks on a curve."""
BAR_ROOM = 0.84
"""Share of a category's room that its bars take together."""
DODGE = 2.2
"""Points by which series stand apart, so that their whiskers do not overlap."""


def render(chart: Chart) -> Figure:
    """Title, legend and panels in rows of three, a panel as wide as a column of a paper."""
    columns = min(MAX_COLUMNS, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    entries, width = legend_entries(chart), PANEL_WIDTH * columns
    per_row = _columns([LEGEND_HANDLE + text_width(line.label, FONT - 0.5) for line in entries], width)
    title = wrapped(chart.title, FONT + 0.5, width - 0.2, "bold")
    panels = [in_readable_units(panel) for panel in chart.panels]
    titles = [wrapped(panel.title, FONT, PANEL_WIDTH - 0.6) for panel in panels]
    lines = max(len(names) for names in titles) + max(_name_lines(panel) for panel in panels)
    height = rows * (PLOT_HEIGHT + TEXT_LINE * lines) + TEXT_LINE * (len(title) + math.ceil(len(entries) / per_row))
    figure = new_figure(width, height)
    figure.set_layout_engine("constrained", w_pad=0.05, h_pad=0.05)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for one, panel, name in zip(axes, panels, titles, strict=False):
        one.set_title("\n".join(name), loc="left")
        _panel(one, panel)
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    if not any(is_stacked(panel) or panel.x.categories for panel in panels):
        share_ranges(axes[: len(panels)])
    for index, (before, after) in enumerate(pairwise(axes)):
        if (index + 1) % columns and before.get_ylabel() == after.get_ylabel():
            after.set_ylabel("")
    if title or entries:
        figure.legend(
            [_handle(line) for line in entries], [line.label for line in entries], loc="outside upper left",
            ncols=per_row, title="\n".join(title), alignment="left", title_fontproperties={"weight": "bold", "size": FONT + 0.5},
        )  # fmt: skip
    return figure


def _name_lines(panel: Panel) -> int:
    """Lines of text that the longest name of a category adds, or all names of a stacked panel."""
    lines = [name.count("\n") + 1 for name in category_names(panel)]
    return max(0, sum(lines) - 10) if is_stacked(panel) else max(lines, default=1) - 1


def _columns(widths: Sequence[float], room: float) -> int:
    """As many columns as fit; entries run down the columns."""
    for columns in range(len(widths), 1, -1):
        if sum(max(column) for column in np.array_split(widths, columns)) <= room:
            return columns
    return 1


def legend_entries(chart: Chart) -> list[Line]:
    """Series in their order, then published numbers, then guides. None where there is nothing to tell apart."""
    by_label: dict[str, Line] = {}
    for line in sorted(chart.lines, key=lambda line: (ORDER[line.role], line.style, line.mark or 0)):
        known = by_label.get(line.label)
        by_label[line.label] = line if known is None else replace(line, points=known.points + line.points)
    return list(by_label.values()) if len(by_label) > 1 else []


def _handle(line: Line) -> Line2D | Patch:
    if line.role in ("bar", "part"):
        return Patch(**bar_look(line))
    look = line_look(line)
    return Line2D([], [], **(look if line.connected else {**look, "linestyle": "none"}))


def _panel(axes: Axes, panel: Panel) -> None:
    if not panel.lines or panel.blank:
        _blank(axes, panel.blank)
        return
    set_axes(axes, panel)
    if is_stacked(panel):
        _stack(axes, panel)
        return
    if panel.shaded_from is not None:
        _shade(axes, panel, panel.shaded_from)
    if panel.mark is not None:
        axes.axvline(panel.mark[0], color=QUIET, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1.2)
        _text(axes, panel.mark[0], 1.0, panel.mark[1], axes.get_xaxis_transform(), xytext=(3, -2), va="top")
    if bars := [line for line in panel.lines if line.role == "bar"]:
        _bars(axes, bars)
    series = [line for line in panel.lines if line.role == "series"]
    for line in panel.lines:
        if line.role == "band":
            _band(axes, line)
        elif line.role == "front":
            axes.step([p.x for p in line.points], [p.y for p in line.points], where="post", **line_look(line))
        elif line.role != "bar":
            _line(axes, line, series.index(line) - (len(series) - 1) / 2 if line in series else 0.0)


def _blank(axes: Axes, why: str) -> None:
    """An empty frame with the reason."""
    axes.set(xticks=[], yticks=[], facecolor="#F7F7F7")
    axes.spines[:].set_visible(False)
    text = "\n".join(wrapped(why, FONT, PANEL_WIDTH - 0.7))
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET, linespacing=1.4)


def _text(axes: Axes, x: float, y: float, text: str, transform: Transform, **style: Any) -> None:
    style = {"xytext": (3.5, 2.5), "size": FONT - 1.5, "color": QUIET, **style}
    axes.annotate(text, (x, y), xycoords=transform, textcoords="offset points", zorder=5, **style)


def _shade(axes: Axes, panel: Panel, start: float) -> None:
    """Grey behind measured points that share cores; published ones were measured elsewhere."""
    ours = {point.x for line in panel.lines if line.role not in ("published", "ideal") for point in line.points}
    beyond = [p.x for line in panel.lines if line.role == "published" for p in line.points if p.x > max(ours)]
    before = [place for place in ours if place < start]
    limits = axes.get_xlim()
    left = _between(max(before), start, panel.x.log) if before else limits[0]
    right = _between(max(ours), min(beyond), panel.x.log) if beyond else limits[1]
    axes.axvspan(left, right, facecolor=SHADE, edgecolor="none", zorder=0)
    axes.set_xlim(limits)


def _between(first: float, second: float, log: bool) -> float:
    return math.sqrt(first * second) if log else (first + second) / 2


def _line(axes: Axes, line: Line, offset: float) -> None:
    look, aside = line_look(line), ScaledTranslation(offset * DODGE / 72, 0, axes.get_figure().dpi_scale_trans)  # type: ignore[union-attr]
    transform = axes.transData + aside
    xs, ys = [point.x for point in line.points], [point.y for point in line.points]
    zorder = {"ideal": 1.5, "published": 1.8}.get(line.role, 2.5)
    if line.connected:
        axes.plot(xs, ys, **{**look, "marker": "none"}, zorder=zorder, transform=transform)
    if line.role == "ideal":
        return
    for point in line.points:
        hollow = point.kind in HOLLOW
        face = {} if line.role == "published" else {"markerfacecolor": "white" if hollow else look["color"]}
        _whisker(axes, point.x, point, look["color"], zorder, transform)
        axes.plot(point.x, point.y, **{**look, "linestyle": "none", **face}, zorder=4 - hollow, transform=transform)
        _signs(axes, point.x, point.y, point, look["color"] if hollow else "white", transform)


def _whisker(axes: Axes, x: float, point: Point, colour: str, zorder: float, transform: Transform) -> None:
    """Interval of a point, and the single values of its mean."""
    if point.low is not None and point.high is not None:
        axes.errorbar(
            x, point.y, yerr=[[point.y - point.low], [point.high - point.y]], ecolor=colour, elinewidth=0.8,
            capsize=1.8, capthick=0.8, fmt="none", zorder=zorder, transform=transform,
        )  # fmt: skip
    if len(point.repeats) > 1:
        style: dict[str, Any] = {
            "color": colour,
            "markersize": 5,
            "markeredgewidth": 0,
            "zorder": 2.8,
            "transform": transform,
        }
        axes.plot([x] * len(point.repeats), point.repeats, ".", **style)


def _signs(axes: Axes, x: float, y: float, point: Point, dot: str, transform: Transform, bar: bool = False) -> None:
    """A dot in the marker, or at the foot of the bar, of emulated compute; label and dagger beside it."""
    if point.emulated:
        foot = {"xytext": (0, 5), "size": FONT} if bar else {"xytext": (0, 0), "size": FONT - 2.5}
        style = {**foot, "color": dot, "ha": "center", "va": "center_baseline"}
        _text(axes, x, 0.0 if bar else y, "•", transform, **style)
    if beside := " ".join(filter(None, (point.label, DISTURBED if point.disturbed else ""))):
        _text(axes, x, y, beside, transform)


def _bars(axes: Axes, lines: Sequence[Line]) -> None:
    """Bars from 0 with the interval of their means; those of one category stand side by side around its place."""
    by_place: dict[float, list[tuple[Line, Point]]] = {}
    for line in lines:
        for point in line.points:
            by_place.setdefault(point.x, []).append((line, point))
    width = BAR_ROOM / max(map(len, by_place.values()))
    for place, bars in by_place.items():
        for index, (line, point) in enumerate(bars):
            x, hollow = place + (index - (len(bars) - 1) / 2) * width, point.kind in HOLLOW
            axes.bar(x, point.y, width=0.9 * width, zorder=2.2, **bar_look(line, hollow))
            _whisker(axes, x, point, INK, 2.9, axes.transData)
            _signs(axes, x, point.y, point, line_look(line)["color"] if hollow else "white", axes.transData, bar=True)
    axes.grid(False, axis="x")


def _band(axes: Axes, line: Line) -> None:
    """A curve with its interval shaded; whiskers where too few repeats are left for an interval."""
    look, xs = line_look(line), [point.x for point in line.points]
    lows = [point.y if point.low is None else point.low for point in line.points]
    highs = [point.y if point.high is None else point.high for point in line.points]
    axes.fill_between(xs, lows, highs, facecolor=look["color"], alpha=0.18, edgecolor="none", zorder=2.2)
    every = max(1, math.ceil(len(xs) / MAX_MARKS))
    axes.plot(xs, [point.y for point in line.points], **look, markevery=(line.style % every, every), zorder=2.5)
    for point in line.points:
        if 1 < point.n < FEWEST:
            _whisker(axes, point.x, point, look["color"], 2.4, axes.transData)
    last = line.points[-1]
    if last.disturbed:
        _signs(axes, last.x, last.y, last, look["color"], axes.transData)


def _stack(axes: Axes, panel: Panel) -> None:
    """Parts from left to right, the first configuration on top, with the marks of each behind its bar."""
    ends, marks = [0.0] * len(panel.x.categories), [""] * len(panel.x.categories)
    for line in panel.lines:
        for point in line.points:
            row = round(point.x)
            axes.barh(row, point.y, left=ends[row], height=0.72, zorder=2.2, **bar_look(line))
            ends[row] += point.y
            marks[row] = " ".join(filter(None, ("•" if point.emulated else "", DISTURBED if point.disturbed else "")))
    for row, (end, mark) in enumerate(zip(ends, marks, strict=True)):
        _text(axes, end, row, mark, axes.transData, xytext=(3, 0), va="center", size=FONT - 1, color=INK)
