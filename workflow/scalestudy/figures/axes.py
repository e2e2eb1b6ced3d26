"""Limits, ticks and units of one pair of axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from scalestudy.figures.chart import Axis, Line, Panel, Point
from scalestudy.figures.style import FONT, PANEL_WIDTH, wrapped
from scalestudy.figures.words import friendly, number, with_unit

MOST_TICKS = 8
WIDEST_INTERVAL = 0.6
"""An interval may stretch an axis by this share of what is drawn; a wider one runs off its edge."""

NEAR_ZERO = 0.35


def factors(panel: Panel) -> tuple[tuple[float, str], tuple[float, str]]:
    """For x and y: what to divide by, and the unit that this makes."""
    drawn = points_of(panel.lines)
    return _factor(panel.x, [point.x for point in drawn]), _factor(panel.y, [point.y for point in drawn])


def _factor(axis: Axis, values: list[float]) -> tuple[float, str]:
    # On a linear axis the large values are what is read.
    return friendly(axis.unit, values if axis.log else [max(values, default=0.0)])


def points_of(lines: Iterable[Line], ideal: bool = False) -> list[Point]:
    """The points of all lines, those of ideal scaling only with `ideal`."""
    return [point for line in lines if ideal or line.role != "ideal" for point in line.points]


def set_axes(axes: Axes, panel: Panel, x_factor: tuple[float, str], y_factor: tuple[float, str]) -> None:
    """Scale, limits, ticks and labels of a panel that has lines."""
    points = points_of(panel.lines, ideal=True)
    xs = [point.x / x_factor[0] for point in points]
    ys = [edge / y_factor[0] for edge in _edges(points, panel.y.log)]
    zero = not any(line.role == "band" for line in panel.lines)
    for said, which, values, factor in ((panel.x, "x", xs, x_factor), (panel.y, "y", ys, y_factor)):
        limits = _limits(said, values, zero=zero and which == "y")
        if said.log:
            axes.set(**{f"{which}scale": "log"})
        axes.set(**{f"{which}lim": limits, f"{which}label": with_unit(said.label, factor[1])})
        _divide(axes.xaxis if which == "x" else axes.yaxis, said, limits, factor[0])


def _edges(points: Sequence[Point], log: bool) -> list[float]:
    """What the vertical axis must hold: all means, and intervals as far as they do not dwarf them."""
    means = [point.y for point in points]
    room = WIDEST_INTERVAL * max(max(means) - min(means), abs(max(means)) * 0.5)
    edges = [*means, *(value for point in points for value in point.repeats)]
    least = 0.0 if min(edges) >= 0 else -math.inf
    for point in points:
        if point.high is not None and point.low is not None:
            edges.append(min(point.high, max(means) + room))
            edges.append(max(point.low, point.y / 3) if log else max(point.low, min(means) - room, least))
    return edges


def _limits(axis: Axis, values: Sequence[float], zero: bool) -> tuple[float, float]:
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


def _divide(axis: XAxis | YAxis, said: Axis, limits: tuple[float, float], factor: float) -> None:
    """Ticks and how they are written."""
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 6)))
    if said.categories:
        axis.set_major_locator(FixedLocator(list(range(len(said.categories)))))
        room = category_room(said)
        names = ["\n".join(wrapped(name, FONT - 0.5, room)) for name in said.categories]
        axis.set_major_formatter(FuncFormatter(lambda place, _: names[round(place)]))
    elif said.ticks:
        axis.set_major_locator(FixedLocator([tick / factor for tick in thinned(said.ticks)]))
    elif said.log:
        axis.set_major_locator(FixedLocator(log_ticks(*limits)))
    else:
        axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))


def category_room(axis: Axis) -> float:
    """Inches that the name of one category may take."""
    return (PANEL_WIDTH - 0.7) / max(1, len(axis.categories)) - 0.06


def category_lines(panel: Panel) -> int:
    """How many lines the longest name below the axis takes; those of stacked parts stand beside it."""
    if any(line.role == "part" for line in panel.lines):
        return 1
    return max((len(wrapped(name, FONT - 0.5, category_room(panel.x))) for name in panel.x.categories), default=1)


def thinned(ticks: Sequence[float]) -> list[float]:
    """At most eight ticks: all, or else every second from the first."""
    kept = list(ticks)
    while len(kept) > MOST_TICKS:
        kept = kept[::2]
    return kept


def log_ticks(low: float, high: float) -> list[float]:
    """Round places on a logarithmic axis, three to eight of them where the range allows."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    best: list[float] = []
    for steps in (
        (1,),
        (1, 3),
        (1, 2, 5),
        (1, 1.5, 2, 3, 5, 7),
        (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
    ):
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) > MOST_TICKS:
            break
        best = inside
        if len(inside) >= 4:
            break
    while len(best) > MOST_TICKS or (not best and len(inside) > MOST_TICKS):
        best = (best or inside)[::2]
    if len(best) < 2:
        best = [float(tick) for tick in MaxNLocator(3).tick_values(low, high) if low <= tick <= high]
    return best
