"""A chart, drawn. Everything is placed in inches, so that text never overlaps and panels keep a column's width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalestudy.analysis.stats import FEWEST
from scalestudy.figures import legend
from scalestudy.figures.axes import category_lines, factors, points_of, set_axes
from scalestudy.figures.chart import Chart, Line, Panel, Point
from scalestudy.figures.legend import EDGE, HOLLOW, bar_look, looks
from scalestudy.figures.notes import DISTURBED
from scalestudy.figures.render_parts import height_of, is_stacked, stack
from scalestudy.figures.style import (
    FONT,
    INK,
    PANEL_WIDTH,
    QUIET,
    SHADE,
    SMALL,
    new_figure,
    wrapped,
)  # fmt: skip

MOST_COLUMNS = 3
PLOT_HEIGHT = 1.95
TITLE_LINE = 0.155
PANEL_TITLE_LINE = 0.145
NOTE_LINE = 0.115
BELOW_AXES = 0.43
CATEGORY_LINE = 0.125
MANY_POINTS = 15
BAR_ROOM = 0.84
"""Share of the room of a category that its bars take together."""
ALIKE = 3.0


def render(chart: Chart) -> Figure:
    """The figure of a chart: title, legend, panels in rows of three, notes."""
    columns = min(MOST_COLUMNS, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    width = PANEL_WIDTH * columns
    room = width - 2 * EDGE
    title = wrapped(chart.title, FONT + 0.5, room, "bold")
    entries = legend.entries(chart)
    legend_columns = legend.column_widths(entries, room)
    legend_rows = math.ceil(len(entries) / len(legend_columns))
    notes = [line for note in chart.notes for line in _hanging(note, room)]
    titles = [wrapped(panel.title, FONT, PANEL_WIDTH - 0.25) for panel in chart.panels]
    title_lines = max(len(lines) for lines in titles)

    plot_height = max([PLOT_HEIGHT, *(height_of(panel) for panel in chart.panels)])
    below = BELOW_AXES + CATEGORY_LINE * (max(category_lines(panel) for panel in chart.panels) - 1)
    row_height = title_lines * PANEL_TITLE_LINE + 0.06 + plot_height + below
    top = (
        EDGE
        + len(title) * TITLE_LINE
        + (0.05 if title else 0)
        + legend_rows * legend.LEGEND_LINE
        + (0.09 if entries else 0)
    )
    height = top + rows * row_height + len(notes) * NOTE_LINE + (0.08 if notes else 0) + EDGE
    figure = new_figure(width, height)

    _text_block(figure, title, EDGE, EDGE, TITLE_LINE, size=FONT + 0.5, weight="bold")
    if entries:
        legend.draw_legend(
            figure, entries, legend_columns, height - (EDGE + len(title) * TITLE_LINE + (0.05 if title else 0))
        )
    made = []
    for index, (panel, lines) in enumerate(zip(chart.panels, titles, strict=True)):
        left = (index % columns) * PANEL_WIDTH
        above = top + (index // columns) * row_height + title_lines * PANEL_TITLE_LINE + 0.06
        box = (left / width, 1 - (above + plot_height) / height, PANEL_WIDTH / width, plot_height / height)
        axes = figure.add_axes(box)
        _panel(axes, panel)
        made.append((axes, lines, above))
    if not any(is_stacked(panel) or panel.x.categories for panel in chart.panels):
        _share([axes for axes, _, _ in made])
    for before, after in pairwise(axes for axes, _, _ in made):
        if before.get_ylabel() == after.get_ylabel() and before.get_position().y0 == after.get_position().y0:
            after.yaxis.label.set_visible(False)
    _fit(figure, [axes for axes, _, _ in made], columns, width)
    for index, (axes, lines, above) in enumerate(made):
        # Beside stacked bars stand long names: there a title begins at the panel's edge.
        edge = (index % columns) * PANEL_WIDTH + EDGE
        left = edge if is_stacked(chart.panels[index]) else axes.get_position().x0 * width
        _text_block(figure, lines, left, above - 0.06 - len(lines) * PANEL_TITLE_LINE, PANEL_TITLE_LINE, size=FONT)
    _text_block(figure, notes, EDGE, height - EDGE - len(notes) * NOTE_LINE, NOTE_LINE, size=SMALL, color=QUIET)
    return figure


def _hanging(note: str, room: float) -> list[str]:
    """A note in lines, all but the first indented."""
    first, *rest = wrapped(note, SMALL, room - 0.1)
    return [first, *(f"   {line}" for line in rest)]


def _text_block(figure: Figure, lines: Sequence[str], left: float, top: float, line: float, **style: Any) -> None:
    """Lines of text from `left` and `top` inches on."""
    width, height = figure.get_size_inches()
    for index, text in enumerate(lines):
        figure.text(left / width, 1 - (top + index * line) / height, text, va="top", ha="left", **style)


def _panel(axes: Axes, panel: Panel) -> None:
    if not panel.lines or panel.blank:
        _blank(axes, panel.blank)
        return
    if is_stacked(panel):
        stack(axes, panel)
        return
    x, y = factors(panel)
    set_axes(axes, panel, x, y)
    if panel.shaded_from is not None:
        _shade(axes, panel, x[0])
    if panel.mark is not None:
        _mark(axes, panel.mark[0] / x[0], panel.mark[1])
    series = [line for line in panel.lines if line.role in ("series", "band", "bar")]
    for line in panel.lines:
        offset = series.index(line) - (len(series) - 1) / 2 if line in series else 0.0
        if line.role == "bar":
            _bars(axes, line, y[0], offset, BAR_ROOM / len(series))
        elif line.role == "front":
            axes.step([p.x / x[0] for p in line.points], [p.y / y[0] for p in line.points], where="post", **looks(line))
        else:
            _line(axes, panel, line, x[0], y[0], offset)


def _blank(axes: Axes, why: str) -> None:
    """An empty frame that says why it is empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.set_facecolor("#F7F7F7")
    for spine in axes.spines.values():
        spine.set_visible(False)
    lines = wrapped(why, FONT, PANEL_WIDTH - 0.7)
    axes.text(
        0.5, 0.5, "\n".join(lines), transform=axes.transAxes, ha="center", va="center", color=QUIET, linespacing=1.4
    )


def _mark(axes: Axes, place: float, label: str) -> None:
    """A thin vertical line, labelled at its upper end."""
    axes.axvline(place, color=QUIET, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1.2)
    axes.annotate(
        label, (place, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
        ha="left", va="top", size=FONT - 1, color=QUIET,
    )  # fmt: skip


def _shade(axes: Axes, panel: Panel, factor: float) -> None:
    """Where ranks share cores."""
    assert panel.shaded_from is not None
    # Published points were measured elsewhere: they are not shaded.
    ours = [line for line in panel.lines if line.role != "published"]
    places = sorted({point.x / factor for point in points_of(ours)})
    theirs = sorted({point.x / factor for point in points_of(panel.lines)} - set(places))
    start, last = panel.shaded_from / factor, places[-1]
    limits = axes.get_xlim()
    before = [place for place in places if place < start]
    beyond = [place for place in theirs if place > last]
    left = _between(before[-1], start, panel.x.log) if before else limits[0]
    right = _between(last, beyond[0], panel.x.log) if beyond else limits[1]
    axes.axvspan(left, right, facecolor=SHADE, edgecolor="none", zorder=0)
    axes.set_xlim(limits)


def _between(first: float, second: float, log: bool) -> float:
    return math.sqrt(first * second) if log else (first + second) / 2


def _line(axes: Axes, panel: Panel, line: Line, x: float, y: float, offset: float) -> None:
    look = looks(line)
    xs = [_moved(axes, panel, point.x / x, offset) for point in line.points]
    ys = [point.y / y for point in line.points]
    if line.role == "band":
        _band(axes, line, xs, ys, y, look)
        return
    zorder = {"ideal": 1.5, "published": 1.8}.get(line.role, 2.5)
    if line.connected:
        axes.plot(xs, ys, **{**look, "marker": "none"}, zorder=zorder)
    if line.role == "ideal":
        return
    for place, value, point in zip(xs, ys, line.points, strict=True):
        _whisker(axes, place, point, y, look["color"], zorder)
        axes.plot(
            [place],
            [value],
            **{**look, "linestyle": "none", **_face(line, point, look)},
            zorder=4 if line.role == "published" else 3,
        )
        _signs(axes, place, value, point, "white" if point.kind not in HOLLOW else look["color"])


def _whisker(axes: Axes, place: float, point: Point, factor: float, colour: str, zorder: float) -> None:
    """A point's interval, and the single values that it is the mean of."""
    if point.low is not None and point.high is not None:
        value = point.y / factor
        axes.errorbar(
            [place], [value], yerr=[[value - point.low / factor], [point.high / factor - value]],
            ecolor=colour, elinewidth=0.8, capsize=1.8, capthick=0.8, fmt="none", zorder=zorder,
        )  # fmt: skip
    if len(point.repeats) > 1:
        singles = [single / factor for single in point.repeats]
        axes.plot([place] * len(singles), singles, ".", color=colour, markersize=5, markeredgewidth=0, zorder=2.8)


def _signs(axes: Axes, place: float, value: float, point: Point, dot: str, in_bar: bool = False) -> None:
    """A dot inside the marker, or at the foot of the bar, where compute was emulated; a dagger where a run was disturbed."""
    if point.emulated:
        axes.annotate(
            "•", (place, 0.0 if in_bar else value), xytext=(0, 5 if in_bar else 0), textcoords="offset points",
            ha="center", va="center_baseline", size=FONT if in_bar else FONT - 2.5, color=dot, zorder=5,
        )  # fmt: skip
    beside = " ".join(filter(None, (point.label, DISTURBED if point.disturbed else "")))
    if beside:
        axes.annotate(
            beside,
            (place, value),
            xytext=(3.5, 2.5),
            textcoords="offset points",
            size=FONT - 1.5,
            color=QUIET,
            zorder=5,
        )


def _bars(axes: Axes, line: Line, factor: float, offset: float, width: float) -> None:
    """One bar per category, from 0, with the interval of its mean."""
    for point in line.points:
        place, value, hollow = point.x + offset * width, point.y / factor, point.kind in HOLLOW
        axes.bar([place], [value], width=0.9 * width, zorder=2.2, **bar_look(line, hollow))
        _whisker(axes, place, point, factor, INK, 2.9)
        _signs(axes, place, value, point, looks(line)["color"] if hollow else "white", in_bar=True)


def _face(line: Line, point: Point, look: dict[str, Any]) -> dict[str, Any]:
    if line.role == "published":
        return {}
    return {"markerfacecolor": "white" if point.kind in HOLLOW else look["color"]}


def _band(
    axes: Axes, line: Line, xs: Sequence[float], ys: Sequence[float], factor: float, look: dict[str, Any]
) -> None:
    lows = [(point.y if point.low is None else point.low) / factor for point in line.points]
    highs = [(point.y if point.high is None else point.high) / factor for point in line.points]
    axes.fill_between(xs, lows, highs, facecolor=look["color"], alpha=0.18, edgecolor="none", zorder=2.2)
    every = max(1, math.ceil(len(xs) / MANY_POINTS))
    axes.plot(xs, ys, **look, markevery=(line.style % every, every), zorder=2.5)
    for place, point in zip(xs, line.points, strict=True):
        if 1 < point.n < FEWEST:
            _whisker(axes, place, point, factor, look["color"], 2.4)
    if line.points[-1].disturbed:
        _signs(axes, xs[-1], ys[-1], line.points[-1], look["color"])


def _moved(axes: Axes, panel: Panel, place: float, offset: float) -> float:
    """A place moved aside a little, so that intervals of several series do not overlap."""
    if any(line.role == "band" for line in panel.lines) or (not panel.x.ticks and not panel.x.categories):
        return place
    low, high = axes.get_xlim()
    if panel.x.log:
        return place * float((high / low) ** (0.008 * offset))
    return place + (0.008 if panel.x.ticks else 0.12) * offset * ((high - low) if panel.x.ticks else 1.0)


def _share(made: Sequence[Axes]) -> None:
    """One range for all panels whose values are of one size, so that they can be compared by eye."""
    for which in ("x", "y"):
        axis = [axes.xaxis if which == "x" else axes.yaxis for axes in made]
        ranges = [one.get_view_interval() for one in axis]
        labels = {one.get_label_text() for one in axis}
        linear = all(one.get_scale() == "linear" for one in axis)
        highest = [high for _, high in ranges]
        if len(labels) == 1 and linear and min(highest) > 0 and max(highest) <= ALIKE * min(highest):
            for axes in made:
                axes.set(**{f"{which}lim": (min(low for low, _ in ranges), max(highest))})


def _fit(figure: Figure, made: Sequence[Axes], columns: int, width: float) -> None:
    """Give each column of panels the left margin that its tick labels need, then set the axes between the margins."""
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for column in range(columns):
        members = made[column::columns]
        needed = 0.0
        for axes in members:
            box = axes.yaxis.get_tightbbox(renderer)
            if box is not None:
                needed = max(needed, (axes.bbox.x0 - box.x0) / figure.dpi + (0.08 if axes.yaxis_inverted() else 0.0))
        left = column * PANEL_WIDTH + EDGE + needed + 0.03
        right = (column + 1) * PANEL_WIDTH - 0.13
        for axes in members:
            place = axes.get_position()
            axes.set_position((left / width, place.y0, (right - left) / width, place.height))
