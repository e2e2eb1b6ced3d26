"""A figure in words: its title and its caption."""

from __future__ import annotations

from collections.abc import Iterable

from scalestudy.figures.chart import Chart, Line, Panel
from scalestudy.figures.notes import DISTURBED, repeats


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
