"""Stacked bars that lie: a row per configuration, so that its name can be read."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from scalestudy.figures.chart import Panel
from scalestudy.figures.legend import bar_look
from scalestudy.figures.notes import DISTURBED
from scalestudy.figures.style import FONT, INK, wrapped
from scalestudy.figures.words import friendly, number, with_unit

NAME_ROOM = 1.35
"""Inches that the name of a row may take."""
ROW, LINE = 0.07, 0.115
BAR = 0.72


def is_stacked(panel: Panel) -> bool:
    """Whether a panel's lines are parts that stand on each other."""
    return any(line.role == "part" for line in panel.lines)


def _names(panel: Panel) -> list[str]:
    return ["\n".join(wrapped(name, FONT - 0.5, NAME_ROOM)) for name in panel.x.categories]


def height_of(panel: Panel) -> float:
    """Inches that the rows of a panel need."""
    return sum(ROW + LINE * (name.count("\n") + 1) for name in _names(panel)) if is_stacked(panel) else 0.0


def stack(axes: Axes, panel: Panel) -> None:
    """Draw the parts from left to right, the first configuration on top; marks say what was emulated or disturbed."""
    names = _names(panel)
    heights = [ROW + LINE * (name.count("\n") + 1) for name in names]
    middles = [sum(heights[:index]) + height / 2 for index, height in enumerate(heights)]
    ends = [0.0] * len(names)
    totals = [
        sum(point.y for line in panel.lines for point in line.points if round(point.x) == row)
        for row in range(len(names))
    ]
    factor, unit = friendly(panel.y.unit, [max(totals)])
    emulated, disturbed = set[int](), set[int]()
    for line in panel.lines:
        for point in line.points:
            row = round(point.x)
            axes.barh(
                [middles[row]],
                [point.y / factor],
                left=ends[row],
                height=BAR * min(heights),
                zorder=2.2,
                **bar_look(line),
            )
            ends[row] += point.y / factor
            emulated |= {row} if point.emulated else set()
            disturbed |= {row} if point.disturbed else set()
    for row, end in enumerate(ends):
        if signs := " ".join([*(["•"] if row in emulated else []), *([DISTURBED] if row in disturbed else [])]):
            axes.annotate(
                signs,
                (end, middles[row]),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                size=FONT - 1,
                color=INK,
            )
    axes.set(xlim=(0, max(ends) * 1.06), ylim=(sum(heights), 0), xlabel=with_unit(panel.y.label, unit))
    axes.yaxis.set_major_locator(FixedLocator(middles))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda _, place: names[place or 0]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 6)))
    axes.grid(False, axis="y")
    assert all(first <= second for first, second in pairwise(middles))
