"""Units, limits, ticks and labels of one pair of axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from scalestudy.figures.chart import Axis, Panel, Point
from scalestudy.figures.words import friendly, number, with_unit

MAX_TICKS = 8
MAX_STRETCH = 0.6
"""An interval may stretch an axis by this share of the means' range; a wider one runs off its edge."""
NEAR_ZERO = 0.35
ALIKE = 3.0
"""Panels share a range where their highest values differ by less than this factor."""
ROW_LETTERS, PANEL_LETTERS = 24, 46
"""Letters that fit beside a row of stacked bars, and below a panel."""


def is_stacked(panel: Panel) -> bool:
    """Whether a panel's lines are parts that stand on each other."""
    return any(line.role == "part" for line in panel.lines)


def in_readable_units(panel: Panel) -> Panel:
    """The panel with its values in the units that suit them."""
    points = [point for line in panel.lines if line.role != "ideal" for point in line.points]
    heights = list(stack_ends(panel).values()) if is_stacked(panel) else [point.y for point in points]
    (x, x_unit), (y, y_unit) = _unit(panel.x, [point.x for point in points]), _unit(panel.y, heights)

    def scaled(point: Point) -> Point:
        low, high = (None if end is None else end / y for end in (point.low, point.high))
        repeats = tuple(one / y for one in point.repeats)
        return replace(point, x=point.x / x, y=point.y / y, low=low, high=high, repeats=repeats)

    return replace(
        panel,
        x=replace(panel.x, unit=x_unit, ticks=tuple(tick / x for tick in panel.x.ticks)),
        y=replace(panel.y, unit=y_unit),
        lines=tuple(replace(line, points=tuple(map(scaled, line.points))) for line in panel.lines),
        shaded_from=None if panel.shaded_from is None else panel.shaded_from / x,
        mark=None if panel.mark is None else (panel.mark[0] / x, panel.mark[1]),
    )


def _unit(axis: Axis, values: list[float]) -> tuple[float, str]:
    # On a linear axis the large values are what is read.
    return friendly(axis.unit, values if axis.log else [max(values, default=0.0)])


def stack_ends(panel: Panel) -> dict[float, float]:
    """Ends of the stacked bars by their places."""
    ends: dict[float, float] = {}
    for point in (point for line in panel.lines for point in line.points):
        ends[point.x] = ends.get(point.x, 0.0) + point.y
    return ends


def set_axes(axes: Axes, panel: Panel) -> None:
    """Scale, limits, ticks and labels of a panel in readable units. Stacked bars lie: their names stand beside them."""
    points = [point for line in panel.lines for point in line.points]
    if is_stacked(panel):
        ends = max(stack_ends(panel).values())
        drawn = [(panel.y, (0.0, 1.06 * ends)), (panel.x, (len(panel.x.categories) - 0.5, -0.5))]
        axes.grid(False, axis="y")
    else:
        from_zero = not any(line.role == "band" for line in panel.lines)
        drawn = [
            (panel.x, _limits(panel.x, [point.x for point in points])),
            (panel.y, _limits(panel.y, _edges(points, panel.y.log), from_zero)),
        ]
    halves: list[XAxis | YAxis] = [axes.xaxis, axes.yaxis]
    for which, half, (axis, limits) in zip("xy", halves, drawn, strict=True):
        unit = ", ".join(filter(None, (axis.unit, "log" if axis.log else "")))
        axes.set(**{f"{which}scale": "log" if axis.log else "linear"})
        axes.set(**{f"{which}lim": limits, f"{which}label": with_unit(axis.label, unit)})
        _divide(half, axis, category_names(panel))


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


def _divide(axis: XAxis | YAxis, drawn: Axis, names: list[str]) -> None:
    """Ticks and their texts."""
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 6)))
    if drawn.categories:
        axis.set_major_locator(FixedLocator(list(range(len(names)))))
        axis.set_major_formatter(FixedFormatter(names))
    elif drawn.ticks:
        axis.set_major_locator(FixedLocator(thinned(drawn.ticks)))
    elif drawn.log:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=MAX_TICKS))
    else:
        axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))


def category_names(panel: Panel) -> list[str]:
    """Names of the categories in lines that fit below, or of stacked bars beside, the axes."""
    names = panel.x.categories
    letters = ROW_LETTERS if is_stacked(panel) else PANEL_LETTERS // max(1, len(names))
    return [textwrap.fill(name, max(6, letters), break_long_words=False) for name in names]


def thinned(ticks: Sequence[float]) -> list[float]:
    """At most eight ticks: all, or else every second from the first."""
    kept = list(ticks)
    while len(kept) > MAX_TICKS:
        kept = kept[::2]
    return kept


def share_ranges(panels: Sequence[Axes]) -> None:
    """One range for all panels with values of one size, so that they can be compared by eye."""
    for which in ("x", "y"):
        halves = [getattr(axes, f"{which}axis") for axes in panels]
        lows, highs = zip(*(half.get_view_interval() for half in halves), strict=True)
        is_linear = all(half.get_scale() == "linear" for half in halves)
        if is_linear and len({half.get_label_text() for half in halves}) == 1 and max(highs) <= ALIKE * min(highs):
            for axes in panels:
                axes.set(**{f"{which}lim": (min(lows), max(highs))})
