"""A figure in words: for those who read the caption, and for those who cannot see the figure."""

from __future__ import annotations

from scalestudy.figures.chart import Chart, Line, Panel
from scalestudy.figures.words import number, quantity

MOST_LINES = 12
MOST_BARS = 12


def title_of(chart: Chart) -> str:
    """The figure's title, or what it draws over what."""
    if chart.title:
        return chart.title
    first = chart.panels[0]
    return _axes(first)


def _axes(panel: Panel) -> str:
    return f"{panel.y.label} over {panel.x.label.lower()}" if panel.x.label else panel.y.label


def alt_text(chart: Chart) -> str:
    """What a reader would see: each line's first and last point with its unit and number of runs, panel by panel."""
    parts = [f"{title_of(chart)}: a chart with {_count(len(chart.panels), 'panel')}."]
    for panel in chart.panels:
        said = [_line(panel, line) for line in panel.lines if line.role != "ideal"]
        rest = len(said) - MOST_LINES
        inside = said[:MOST_LINES] + ([f"and {_count(rest, 'more line')}"] if rest > 0 else [])
        name = f"{panel.title}: " if panel.title else ""
        parts.append(name + (f"{_axes(panel)}. " + "; ".join(inside) + "." if inside else f"{panel.blank}."))
    return " ".join(parts)


def _line(panel: Panel, line: Line) -> str:
    """A line's first and last point, of bars and parts each, and how many runs they are means of."""
    kinds = dict.fromkeys(point.kind for point in line.points)
    marks: list[str] = [kind for kind in kinds if kind in ("extrapolated", "predicted")]
    marks += (
        ["compute emulated"] if any(point.emulated for point in line.points) and "emulated" not in line.label else []
    )
    marks += ["with disturbed runs"] if any(point.disturbed for point in line.points) else []
    each = line.role in ("bar", "part") and len(line.points) <= MOST_BARS
    shown = line.points if each else dict.fromkeys((line.points[0], line.points[-1]))
    values = ", ".join(f"{quantity(point.y, panel.y.unit)} at {_place(panel, point.x)}" for point in shown)
    counts = sorted({point.n for point in line.points})
    runs = (
        ""
        if line.role in ("published", "front")
        else f" (n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))})"
    )
    return f"{', '.join((line.label, *marks))}: {values}{runs}"


def _place(panel: Panel, x: float) -> str:
    if panel.x.categories:
        return panel.x.categories[round(x)]
    return quantity(x, panel.x.unit) if panel.x.unit else number(x, 6)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
