"""A figure in words: its caption, and the text for readers who cannot see it."""

from __future__ import annotations

from collections.abc import Iterable

from scalestudy.figures.chart import Chart, Line, Panel
from scalestudy.figures.notes import DISTURBED, repeats
from scalestudy.figures.words import counted, number, quantity

MAX_LINES = 12
MAX_BARS = 12


def title_of(chart: Chart) -> str:
    """The figure's title, or y over x."""
    return chart.title or _axes(chart.panels[0])


def caption(chart: Chart) -> str:
    """One line: what is drawn, n, the whiskers, the marks."""
    axes = dict.fromkeys(_axes(panel) for panel in chart.panels if panel.lines or panel.tracks)
    return "; ".join(filter(None, [*axes, repeats(chart.lines), *_marks(chart.lines)]))


def caption_file(chart: Chart) -> str:
    """Title and caption in one line, then a line for each note and each source of published numbers."""
    first = " ".join(f"{text}." for text in (chart.title, caption(chart)) if text)
    return "\n".join([first, *(f"{note}." for note in chart.notes), *chart.sources]) + "\n"


def _axes(panel: Panel) -> str:
    return f"{panel.y.label} over {panel.x.label.lower()}" if panel.x.label else panel.y.label


def _marks(lines: Iterable[Line]) -> list[str]:
    """Meaning of the marks that are drawn."""
    points = [point for line in lines if line.role not in ("published", "ideal") for point in line.points]
    kinds = [kind for kind in ("extrapolated", "predicted") if any(point.kind == kind for point in points)]
    emulated = dict.fromkeys(part for point in points for part in point.emulated)
    return [
        *([f"hollow: {' or '.join(kinds)}"] if kinds else []),
        *([f"dot inside: {', '.join(emulated)} emulated"] if emulated else []),
        *([f"{DISTURBED}: with disturbed runs"] if any(point.disturbed for point in points) else []),
    ]


def alt_text(chart: Chart) -> str:
    """Each line's first and last point with its unit and number of runs, panel by panel."""
    parts = [f"{title_of(chart)}: a chart with {counted(len(chart.panels), 'panel')}."]
    for panel in chart.panels:
        texts = [f"{track.label} {track.beside}" for track in panel.tracks]
        texts += [_line(panel, line) for line in panel.lines if line.role != "ideal"]
        rest = len(texts) - MAX_LINES
        inside = texts[:MAX_LINES] + ([f"and {counted(rest, 'more line')}"] if rest > 0 else [])
        name = f"{panel.title}: " if panel.title else ""
        parts.append(name + (f"{_axes(panel)}. " + "; ".join(inside) + "." if inside else f"{panel.blank}."))
    return " ".join(parts)


def _line(panel: Panel, line: Line) -> str:
    """A line's first and last point, of bars and parts each, and the numbers of runs in their means."""
    kinds = dict.fromkeys(point.kind for point in line.points)
    marks: list[str] = [kind for kind in kinds if kind in ("extrapolated", "predicted", "reported")]
    if "emulated" not in line.label and (parts := dict.fromkeys(part for one in line.points for part in one.emulated)):
        marks.append(f"{', '.join(parts)} emulated")
    if any(point.disturbed for point in line.points):
        marks.append("with disturbed runs")
    each = line.role in ("bar", "part") and len(line.points) <= MAX_BARS
    shown = line.points if each else dict.fromkeys((line.points[0], line.points[-1]))
    values = ", ".join(f"{quantity(point.y, panel.y.unit)} at {_place(panel, point.x)}" for point in shown)
    counts = sorted({point.n for point in line.points})
    ends = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    runs = "" if line.role == "published" else f" (n = {ends})"
    return f"{', '.join((line.label, *marks))}: {values}{runs}"


def _place(panel: Panel, x: float) -> str:
    if panel.x.categories:
        return panel.x.categories[round(x)]
    return quantity(x, panel.x.unit) if panel.x.unit else number(x, 6)
