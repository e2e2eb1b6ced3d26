"""Units, limits, ticks and labels of one pair of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from scalestudy.figures.chart import Axis, Line, Panel, Point
from scalestudy.figures.style import FONT, PANEL_WIDTH, wrapped
from scalestudy.figures.words import friendly, with_unit
from scalestudy.spec.labels import number

MAX_TICKS = 8
STEPS = ((1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9))
"""Patterns of ticks in a decade, ever denser."""
MAX_STRETCH = 0.6
"""An interval may stretch an axis by this share of the means' range; a wider one runs off its edge."""
NEAR_ZERO = 0.35
ALIKE = 3.0
"""Panels share a range where their highest values differ by less than this factor."""
NAME_WIDTH = 1.35
"""Inches for the name of a row of stacked bars."""


def is_stacked(panel: Panel) -> bool:
    """Whether a panel's lines are parts that stand on each other."""
    return any(line.role == "part" for line in panel.lines)


def in_readable_units(panel: Panel) -> Panel:
    """The panel with its values in the units that suit them."""
    points = [point for line in panel.lines if line.role != "ideal" for point in line.points]
    heights = _ends(panel) if is_stacked(panel) else [point.y for point in points]
    x, x_unit = _unit(panel.x, [point.x for point in points])
    y, y_unit = _unit(panel.y, heights)
    return replace(
        panel,
        x=replace(panel.x, unit=x_unit, ticks=tuple(tick / x for tick in panel.x.ticks)),
        y=replace(panel.y, unit=y_unit),
        lines=tuple(replace(line, points=tuple(_scaled(p, x, y) for p in line.points)) for line in panel.lines),
        shaded_from=None if panel.shaded_from is None else panel.shaded_from / x,
        mark=None if panel.mark is None else (panel.mark[0] / x, panel.mark[1]),
    )


def _unit(axis: Axis, values: list[float]) -> tuple[float, str]:
    # On a linear axis the large values are what is read.
    return friendly(axis.unit, values if axis.log else [max(values, default=0.0)])


def _scaled(point: Point, x: float, y: float) -> Point:
    low, high = (None if end is None else end / y for end in (point.low, point.high))
    return replace(
        point, x=point.x / x, y=point.y / y, low=low, high=high, repeats=tuple(one / y for one in point.repeats)
    )


def _ends(panel: Panel) -> list[float]:
    """Ends of the stacked bars."""
    ends: dict[float, float] = {}
    for line in panel.lines:
        for point in line.points:
            ends[point.x] = ends.get(point.x, 0.0) + point.y
    return list(ends.values())


def set_axes(axes: Axes, panel: Panel) -> None:
    """Scale, limits, ticks and labels of a panel in readable units. Stacked bars lie: their names stand beside them."""
    points = [point for line in panel.lines for point in line.points]
    values = [point.x for point in points], _edges(points, panel.y.log)
    limits = [_limits(panel.x, values[0]), _limits(panel.y, values[1], zero=not _has(panel.lines, "band"))]
    drawn = list(zip((panel.x, panel.y), limits, strict=True))
    if is_stacked(panel):
        drawn = [(panel.y, (0.0, 1.06 * max(_ends(panel)))), (panel.x, (len(panel.x.categories) - 0.5, -0.5))]
        axes.grid(False, axis="y")
    halves: list[XAxis | YAxis] = [axes.xaxis, axes.yaxis]
    for which, half, (axis, ends) in zip("xy", halves, drawn, strict=True):
        unit = ", ".join(filter(None, (axis.unit, "log" if axis.log else "")))
        axes.set(**{f"{which}scale": "log" if axis.log else "linear"})
        axes.set(**{f"{which}lim": ends, f"{which}label": with_unit(axis.label, unit)})
        _divide(half, axis, ends, category_names(panel))


def _has(lines: Sequence[Line], role: str) -> bool:
    return any(line.role == role for line in lines)


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
    if axis.limits is not None:
        return axis.limits[0], axis.limits[1] * (1.0 if axis.limits[1] <= 1.1 else 1.05)
    if axis.categories:
        return -0.5, len(axis.categories) - 0.5
    low, high = min(values), max(values)
    if axis.log:
        pad = max((high / low) ** 0.06, 1.12)
        return low / pad, high * pad
    # A quantity starts at zero; a place does where it is near.
    from_zero = low >= 0 and (zero or low < NEAR_ZERO * high)
    pad = 0.06 * (high if from_zero else high - low) or 0.5 * abs(high) or 1.0
    return (0.0 if from_zero else low - pad), high + pad


def _divide(axis: XAxis | YAxis, drawn: Axis, limits: tuple[float, float], names: list[str]) -> None:
    """Ticks and their texts."""
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 6)))
    if drawn.categories:
        axis.set_major_locator(FixedLocator(list(range(len(names)))))
        axis.set_major_formatter(FixedFormatter(names))
    elif drawn.ticks:
        axis.set_major_locator(FixedLocator(thinned(drawn.ticks)))
    elif drawn.log:
        axis.set_major_locator(FixedLocator(log_ticks(*limits)))
    else:
        axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))


def category_names(panel: Panel) -> list[str]:
    """Names of the categories in lines that fit below, or of stacked bars beside, the axes."""
    names = panel.x.categories
    width = NAME_WIDTH if is_stacked(panel) else (PANEL_WIDTH - 0.7) / max(1, len(names)) - 0.06
    return ["\n".join(wrapped(name, FONT - 0.5, width)) for name in names]


def thinned(ticks: Sequence[float]) -> list[float]:
    """At most eight ticks: all, or else every second from the first."""
    kept = list(ticks)
    while len(kept) > MAX_TICKS:
        kept = kept[::2]
    return kept


def log_ticks(low: float, high: float) -> list[float]:
    """Round places on a logarithmic axis, four to eight of them where the range allows."""
    decades = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    ticks = thinned([decade for decade in decades if low <= decade <= high])
    for steps in STEPS:
        denser = [step * decade for decade in decades for step in steps if low <= step * decade <= high]
        if len(ticks) < 4 and len(denser) <= MAX_TICKS:
            ticks = denser
    if len(ticks) < 2:
        ticks = [float(tick) for tick in MaxNLocator(3).tick_values(low, high) if low <= tick <= high]
    return ticks


def share_ranges(panels: Sequence[Axes]) -> None:
    """One range for all panels with values of one size, so that they can be compared by eye."""
    for which in ("x", "y"):
        halves = [axes.xaxis if which == "x" else axes.yaxis for axes in panels]
        ranges = [half.get_view_interval() for half in halves]
        highest = [high for _, high in ranges]
        is_linear = all(half.get_scale() == "linear" for half in halves)
        if is_linear and len({half.get_label_text() for half in halves}) == 1 and max(highest) <= ALIKE * min(highest):
            for axes in panels:
                axes.set(**{f"{which}lim": (min(low for low, _ in ranges), max(highest))})
