"""A chart, drawn. Matplotlib's constrained layout finds room for titles, labels and the legend."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis as MatplotlibAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation, Transform

from scalestudy.claims.model import MIN_REPEATS
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.notes import DISTURBED
from scalestudy.figures.style import FONT, GREY, HOLLOW, INK, PANEL_WIDTH, QUIET, SHADE, bar_look, line_look
from scalestudy.spec.labels import friendly, number, with_unit

MAX_COLUMNS = 3
PLOT_HEIGHT, TEXT_LINE = 2.5, 0.16
"""Inches of a panel with its labels, and of a line of text."""
LETTERS, TITLE_LETTERS = 52, 44
"""Letters of a legend with its handles, and of a bold title, that fit into a panel's width."""
ROW_LETTERS, PANEL_LETTERS = 24, 46
"""Letters that fit beside a row of stacked bars, and below a panel."""
HANDLE_LETTERS = 8
MAX_LOW_ROWS = 10
"""Rows of a panel that need no more height than PLOT_HEIGHT."""
ORDER = {"series": 0, "band": 0, "bar": 0, "part": 0, "published": 1, "ideal": 2}
MAX_MARKS = 15
"""Marks on a curve."""
MAX_TICKS = 8
BAR_ROOM = 0.84
"""Share of a category's room that its bars take together."""
DODGE = 2.2
"""Points by which series stand apart, so that their whiskers do not overlap."""
MAX_STRETCH = 0.6
"""An interval may stretch an axis by this share of the means' range; a wider one runs off its edge."""
NEAR_ZERO = 0.35
ALIKE = 3.0
"""Panels share a range where their highest values differ by less than this factor."""


def render(chart: Chart) -> Figure:
    """Title, legend and panels in rows of three, a panel as wide as a column of a paper."""
    columns = min(MAX_COLUMNS, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    entries = legend_entries(chart)
    longest = max((len(line.label) for line in entries), default=0) + HANDLE_LETTERS
    per_row = max(1, min(len(entries), LETTERS * columns // longest))
    panels = [_in_readable_units(panel) for panel in chart.panels]
    title = textwrap.wrap(chart.title, TITLE_LETTERS * columns)
    titles = [textwrap.fill(panel.title, LETTERS - 6) for panel in panels]
    lines = max(name.count("\n") for name in titles) + max(_name_lines(panel) for panel in panels)
    lines = rows * (lines + 1) + len(title) + math.ceil(len(entries) / per_row)
    figure = Figure((PANEL_WIDTH * columns, rows * PLOT_HEIGHT + TEXT_LINE * lines), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for one, panel, name in zip(axes, panels, titles, strict=False):
        one.set_title(name, loc="left")
        _panel(one, panel)
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    if not any(_is_stacked(panel) or panel.tracks for panel in panels):
        for which in "y" if any(panel.x.categories for panel in panels) else "xy":
            _share_range(axes[: len(panels)], which)
    labels, rows_of = [one.get_ylabel() for one in axes], [[track.label for track in panel.tracks] for panel in panels]
    for index, one in enumerate(axes[: len(panels)]):
        if index % columns and labels[index] == labels[index - 1]:
            one.set_ylabel("")
        if index % columns and rows_of[index] == rows_of[index - 1] != []:
            one.set_yticklabels([])
    if title or entries:
        figure.legend(
            [_handle(line) for line in entries], [line.label for line in entries], loc="outside upper left",
            ncols=per_row, title="\n".join(title), alignment="left", title_fontproperties={"weight": "bold", "size": FONT + 0.5},
        )  # fmt: skip
    return figure


def _is_stacked(panel: Panel) -> bool:
    return any(line.role == "part" for line in panel.lines)


def _category_names(panel: Panel) -> list[str]:
    """Names of the categories in lines that fit below, or of stacked bars beside, the axes."""
    names = panel.x.categories
    letters = ROW_LETTERS if _is_stacked(panel) else PANEL_LETTERS // max(1, len(names))
    return [textwrap.fill(name, max(6, letters), break_long_words=False) for name in names]


def _name_lines(panel: Panel) -> int:
    """Lines of text that the longest name of a category adds, or all names of a stacked panel."""
    if panel.tracks:
        return max(0, len(panel.tracks) - MAX_LOW_ROWS)
    lines = [name.count("\n") + 1 for name in _category_names(panel)]
    return max(0, sum(lines) - MAX_LOW_ROWS) if _is_stacked(panel) else max(lines, default=1) - 1


def legend_entries(chart: Chart) -> list[Line]:
    """Series in their order, then published numbers, then guides. None where there is nothing to tell apart."""
    by_label: dict[str, Line] = {}
    for line in sorted(chart.lines, key=lambda line: (ORDER[line.role], line.style, line.mark or 0)):
        entry = by_label.get(line.label)
        by_label[line.label] = line if entry is None else replace(line, points=entry.points + line.points)
    return list(by_label.values()) if len(by_label) > 1 else []


def _handle(line: Line) -> Line2D | Patch:
    if line.role in ("bar", "part"):
        return Patch(**bar_look(line, all(point.kind in HOLLOW for point in line.points)))
    look = line_look(line)
    return Line2D([], [], **(look if line.connected else {**look, "linestyle": "none"}))


def _in_readable_units(panel: Panel) -> Panel:
    """The panel with its values in the units that suit them: on a linear axis the large values are what is read."""
    points = [point for line in panel.lines if line.role != "ideal" for point in line.points]
    heights = list(_stack_ends(panel).values()) if _is_stacked(panel) else [point.y for point in points]
    lasts = [panel.x.limits[1]] if panel.tracks and panel.x.limits else [point.x for point in points]
    halves = ((panel.x, lasts), (panel.y, heights))
    (x, x_unit), (y, y_unit) = (
        friendly(axis.unit, values if axis.log else [max(values, default=0.0)]) for axis, values in halves
    )

    def scaled(point: Point) -> Point:
        low, high = (None if end is None else end / y for end in (point.low, point.high))
        repeats = tuple(one / y for one in point.repeats)
        return replace(point, x=point.x / x, y=point.y / y, low=low, high=high, repeats=repeats)

    return replace(
        panel,
        x=replace(
            panel.x,
            unit=x_unit,
            ticks=tuple(tick / x for tick in panel.x.ticks),
            limits=None if panel.x.limits is None else (panel.x.limits[0] / x, panel.x.limits[1] / x),
        ),
        y=replace(panel.y, unit=y_unit),
        lines=tuple(replace(line, points=tuple(map(scaled, line.points))) for line in panel.lines),
        shaded_from=None if panel.shaded_from is None else panel.shaded_from / x,
        mark=None if panel.mark is None else (panel.mark[0] / x, panel.mark[1]),
        tracks=tuple(
            replace(track, spans=tuple((begin / x, end / x) for begin, end in track.spans)) for track in panel.tracks
        ),
        divided_at=tuple(place / x for place in panel.divided_at),
    )


def _stack_ends(panel: Panel) -> dict[float, float]:
    """Ends of the stacked bars by their places."""
    ends: dict[float, float] = {}
    for point in (point for line in panel.lines for point in line.points):
        ends[point.x] = ends.get(point.x, 0.0) + point.y
    return ends


def _panel(axes: Axes, panel: Panel) -> None:
    if panel.tracks:
        _timeline(axes, panel)
        return
    if not panel.lines or panel.blank:
        axes.set(xticks=[], yticks=[], facecolor="#F7F7F7")
        axes.spines[:].set_visible(False)
        why = textwrap.fill(panel.blank, LETTERS - 8)
        axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=QUIET, linespacing=1.4)
        return
    if _is_stacked(panel):
        _stack(axes, panel)
        return
    points = [point for line in panel.lines for point in line.points]
    from_zero = not any(line.role == "band" for line in panel.lines)
    _set_axis(axes, "x", panel.x, _limits(panel.x, [point.x for point in points]), _category_names(panel))
    _set_axis(axes, "y", panel.y, _limits(panel.y, _edges(points, panel.y.log), from_zero), [])
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
        elif line.role != "bar":
            _line(axes, line, series.index(line) - (len(series) - 1) / 2 if line in series else 0.0)


def _set_axis(axes: Axes, which: str, drawn: Axis, limits: tuple[float, float], names: list[str]) -> None:
    """Scale, limits, label and ticks of one axis; the ticks of categories are their `names`."""
    unit = ", ".join(filter(None, (drawn.unit, "log" if drawn.log else "")))
    axes.set(**{f"{which}scale": "log" if drawn.log else "linear"})
    axes.set(**{f"{which}lim": limits, f"{which}label": with_unit(drawn.label, unit)})
    axis: MatplotlibAxis = getattr(axes, f"{which}axis")
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: number(value, 6)))
    if drawn.categories:
        axis.set_ticks(range(len(names)), names)
    elif drawn.ticks:
        # All, or else every second from the first.
        step = 2 ** max(0, math.ceil(math.log2(len(drawn.ticks) / MAX_TICKS)))
        axis.set_major_locator(ticker.FixedLocator(drawn.ticks[::step]))
    elif drawn.log:
        subs = (1, 2, 5) if limits[1] < 100 * limits[0] else (1,)
        axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=MAX_TICKS))
    else:
        axis.set_major_locator(ticker.MaxNLocator(7, steps=[1, 2, 5, 10]))


def _edges(points: Sequence[Point], log: bool) -> list[float]:
    """Values that the vertical axis must hold: all means, and intervals as far as they do not dwarf them."""
    means = [point.y for point in points]
    room = MAX_STRETCH * max(max(means) - min(means), abs(max(means)) * 0.5)
    edges = [*means, *(value for point in points for value in point.repeats)]
    least = 0.0 if min(edges) >= 0 else -math.inf
    for point in points:
        if point.high is not None and point.low is not None:
            edges.append(min(point.high, max(means) + room))
            edges.append(max(point.low, point.y / 3) if log else max(point.low, min(means) - room, least))
    return edges


def _limits(axis: Axis, values: Sequence[float], zero: bool = False) -> tuple[float, float]:
    if axis.categories:
        return -0.5, len(axis.categories) - 0.5
    low, high = min(values), max(values)
    if axis.log:
        pad = max((high / low) ** 0.06, 1.12)
        return low / pad, high * pad
    # A quantity starts at zero; a place does where it is near.
    from_zero = low >= 0 and (zero or low < NEAR_ZERO * high)
    pad = 0.06 * (high if from_zero else high - low) or 0.5 * abs(high) or 1.0
    least, most = axis.limits or (-math.inf, math.inf)
    # A mark on the very end is drawn whole.
    return max(least, 0.0 if from_zero else low - pad), min(1.02 * most, high + pad)


def _share_range(panels: Sequence[Axes], which: str) -> None:
    """One range of the axis `which` for all panels with values of one size, so that they can be compared by eye."""
    halves = [getattr(axes, f"{which}axis") for axes in panels]
    lows, highs = zip(*(half.get_view_interval() for half in halves), strict=True)
    is_linear = all(half.get_scale() == "linear" for half in halves)
    if is_linear and len({half.get_label_text() for half in halves}) == 1 and max(highs) <= ALIKE * min(highs):
        for axes in panels:
            axes.set(**{f"{which}lim": (min(lows), max(highs))})


def _text(axes: Axes, x: float, y: float, text: str, transform: Transform, **style: Any) -> None:
    # A mark beyond the axes is left out: constrained layout would make room for it, and none for the axes.
    style = {"xytext": (3.5, 2.5), "size": FONT - 1.5, "color": QUIET, "annotation_clip": True, **style}
    axes.annotate(text, (x, y), xycoords=transform, textcoords="offset points", zorder=5, **style)


def _shade(axes: Axes, panel: Panel, start: float) -> None:
    """Grey behind measured points that share cores; published ones were measured elsewhere."""

    def between(first: float, second: float) -> float:
        return math.sqrt(first * second) if panel.x.log else (first + second) / 2

    ours = {point.x for line in panel.lines if line.role not in ("published", "ideal") for point in line.points}
    beyond = [p.x for line in panel.lines if line.role == "published" for p in line.points if p.x > max(ours)]
    before, limits = [place for place in ours if place < start], axes.get_xlim()
    left = between(max(before), start) if before else limits[0]
    right = between(max(ours), min(beyond)) if beyond else limits[1]
    axes.axvspan(left, right, facecolor=SHADE, edgecolor="none", zorder=0)
    axes.set_xlim(limits)


def _line(axes: Axes, line: Line, offset: float) -> None:
    look, aside = line_look(line), ScaledTranslation(offset * DODGE / 72, 0, axes.get_figure().dpi_scale_trans)  # type: ignore[union-attr]
    transform = axes.transData + aside
    xs, ys = [point.x for point in line.points], [point.y for point in line.points]
    zorder = {"ideal": 1.5, "published": 1.8}.get(line.role, 2.5)
    if line.connected:
        axes.plot(xs, ys, **{**look, "marker": "none"}, zorder=zorder, transform=transform)
    for point in line.points if line.role != "ideal" else ():
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
        look: dict[str, Any] = {"color": colour, "markersize": 5, "markeredgewidth": 0, "zorder": 2.8}
        axes.plot([x] * len(point.repeats), point.repeats, ".", **look, transform=transform)


def _signs(axes: Axes, x: float, y: float, point: Point, dot: str, transform: Transform, bar: bool = False) -> None:
    """A dot in the marker, or at the foot of the bar, of emulated parts; a dagger beside it."""
    if point.emulated:
        foot = {"xytext": (0, 5), "size": FONT} if bar else {"xytext": (0, 0), "size": FONT - 2.5}
        style = {**foot, "color": dot, "ha": "center", "va": "center_baseline"}
        _text(axes, x, 0.0 if bar else y, "•", transform, **style)
    if point.disturbed:
        _text(axes, x, y, DISTURBED, transform)


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
        if 1 < point.n < MIN_REPEATS:
            _whisker(axes, point.x, point, look["color"], 2.4, axes.transData)
    last = line.points[-1]
    _signs(axes, last.x, last.y, replace(last, emulated=()), look["color"], axes.transData)


def _stack(axes: Axes, panel: Panel) -> None:
    """Parts from left to right, the first configuration on top, with the marks of each behind its bar."""
    names = _category_names(panel)
    _set_axis(axes, "x", panel.y, (0.0, 1.06 * max(_stack_ends(panel).values())), [])
    _set_axis(axes, "y", panel.x, (len(names) - 0.5, -0.5), names)
    axes.grid(False, axis="y")
    ends, points = dict.fromkeys(range(len(names)), 0.0), dict[int, Point]()
    for line in panel.lines:
        for point in line.points:
            row = round(point.x)
            axes.barh(row, point.y, left=ends[row], height=0.72, zorder=2.2, **bar_look(line))
            ends[row], points[row] = ends[row] + point.y, point
    for row, point in points.items():
        marks = ("•" if point.emulated else "") + (DISTURBED if point.disturbed else "")
        _text(axes, ends[row], row, marks, axes.transData, xytext=(3, 0), va="center", size=FONT - 1, color=INK)


def _timeline(axes: Axes, panel: Panel) -> None:
    """Tracks from above, each with its spans; thin lines divide steps, and what stands beside a track is at its end."""
    assert panel.x.limits is not None
    _set_axis(axes, "x", panel.x, panel.x.limits, [])
    names = [track.label for track in panel.tracks]
    axes.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)), yticklabels=names)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.grid(False)
    for place in panel.divided_at:
        axes.axvline(place, color=QUIET, linewidth=0.6, linestyle=(0, (1, 1.5)), zorder=1.2)
    for row, track in enumerate(panel.tracks):
        if track.begins and row:
            axes.axhline(row - 0.5, color=GREY, linewidth=0.6)
        look = {**bar_look(Line("", (), "part", track.style)), "hatch": "", "edgecolor": "none"}
        axes.broken_barh([(begin, end - begin) for begin, end in track.spans], (row - 0.38, 0.76), zorder=2.2, **look)
        _text(axes, panel.x.limits[1], row, track.beside, axes.transData, va="center", xytext=(3, 0))
