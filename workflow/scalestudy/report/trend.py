"""Speed over campaigns: a figure and a table per study, a panel per configuration."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from scalestudy.analysis.instruments import told
from scalestudy.analysis.trend import Place, Series, Trend, too_few
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.configurations import Name, fallback_name
from scalestudy.figures.words import column_label, unit_of
from scalestudy.files import write_text
from scalestudy.report.comparison import changed

MOST_NAMES = 8
"""Campaigns whose names have room below an axis; of more, their numbers stand there."""
FIRST = 100.0

Named = tuple[Name, Series]


def by_study(trend: Trend, names: Mapping[str, Name]) -> dict[str, list[Named]]:
    """The series of each study, in the study's order."""
    order = {configuration: place for place, configuration in enumerate(names)}
    found: dict[str, list[Named]] = {}
    for series in sorted(trend.series, key=lambda each: order.get(each.configuration, len(order))):
        name = names.get(series.configuration) or fallback_name(series.run)
        found.setdefault(name.study, []).append((name, series))
    return found


def chart(trend: Trend, title: str, series: Sequence[Named]) -> Chart:
    """A panel per configuration: the speed in each campaign, the first at 100, and the mean between changes."""
    campaigns = [campaign.name for campaign in trend.campaigns]
    notes = [
        f"Speed: {column_label(trend.column).lower()}"
        + (", its inverse" if unit_of(trend.column) == "s" else "")
        + "; each panel's first campaign is 100. Dots: repeats; bars: 95 % interval of three repeats or more",
        too_few(trend)
        or "Grey: mean between changes (largest |t| over all places, 5 % over all configurations by Holm)",
    ]
    if len(campaigns) > MOST_NAMES:
        notes.append("Campaigns: " + ", ".join(f"{index + 1} {name}" for index, name in enumerate(campaigns)))
    notes += instrument_changes(trend)
    if any(each.emulated for _, each in series):
        notes.append("Some of these runs have emulated parts")
    return Chart(title, tuple(_panel(name, each, campaigns) for name, each in series), tuple(notes))


def instrument_changes(trend: Trend) -> list[str]:
    """A sentence for each campaign whose instrument differs from that of the campaign before."""
    return [
        f"From {campaign.name} on the instrument differs: {'; '.join(told(found))}"
        for campaign, found in zip(trend.campaigns[1:], trend.instruments, strict=True)
        if found
    ]


def _panel(name: Name, series: Series, campaigns: Sequence[str]) -> Panel:
    base = series.places[0].mean / FIRST
    points = tuple(_point(place, base) for place in series.places)
    edges = [value for point in points for value in (point.y, point.low, point.high, *point.repeats) if value]
    pad = 0.1 * (max(edges) - min(edges)) or 1.0
    lines = (Line("campaign", points), *([_segments(series, base)] if series.changes else []))
    axis = (
        Axis("Campaign", categories=tuple(campaigns))
        if len(campaigns) <= MOST_NAMES
        else Axis("Campaign", categories=tuple(str(index + 1) for index in range(len(campaigns))))
    )
    limits = (min(edges) - pad, (max(edges) + pad) / 1.05)
    return Panel(name.text, axis, Axis("Speed, first campaign 100", limits=limits), lines)


def _point(place: Place, base: float) -> Point:
    low, high = (None if end is None else end / base for end in (place.low, place.high))
    values = tuple(value / base for value in place.values)
    return Point(place.campaign, place.mean / base, low, high, len(values), repeats=values)


def _segments(series: Series, base: float) -> Line:
    """The geometric mean of each part between changes, as a step."""
    starts = [0, *(change.start for change in series.changes), len(series.places)]
    points = []
    for begin, end in pairwise(starts):
        part = series.places[begin:end]
        mean = math.exp(math.fsum(math.log(place.mean) for place in part) / len(part)) / base
        points += [Point(part[0].campaign - 0.4, mean), Point(part[-1].campaign + 0.4, mean)]
    return Line("mean between changes", tuple(points), role="ideal")


HEAD = (
    "study", "scale", "configuration", "campaign", "started", "mean", "low", "high", "n", "column", "change", "p", "p_holm",
)  # fmt: skip


def as_csv(trend: Trend, series: Sequence[Named]) -> str:
    """A line per configuration and campaign; `change`: speed from here on over that before, where it changed here."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEAD)
    for name, each in series:
        shifts = {change.start: math.exp(change.shift) for change in each.changes}
        for index, place in enumerate(each.places):
            campaign = trend.campaigns[place.campaign]
            values = (
                name.study, name.scale, name.text, campaign.name, campaign.started, place.mean, place.low, place.high,
                len(place.values), trend.column, shifts.get(index), each.p, each.p_holm,
            )  # fmt: skip
            writer.writerow(
                ["" if value is None else f"{value:.6g}" if isinstance(value, float) else value for value in values]
            )
    return out.getvalue()


def sentence(trend: Trend, series: Series) -> str:
    """What became of a configuration over the campaigns."""
    if not series.changes:
        first, last = series.places[0], series.places[-1]
        why = "" if series.p is not None else f" ({len(series.places)} campaigns are too few to find one)"
        return f"no change found{why}; last against first {changed(last.mean / first.mean, None, None)}"
    said = (
        f"{changed(math.exp(change.shift), None, None)} from {trend.campaigns[series.places[change.start].campaign].name} on"
        for change in series.changes
    )
    return "; ".join(said) + f" (p = {series.p_holm:.2g} over all configurations)"


def as_markdown(trend: Trend, title: str, series: Sequence[Named]) -> str:
    """A line per configuration."""
    lines = [f"## {title}: {len(trend.campaigns)} campaigns", "", "| configuration | speed |", "|---|---|"]
    lines += [f"| {name.text} | {sentence(trend, each)} |" for name, each in series]
    lines += ["", *(f"- {said}" for said in instrument_changes(trend))]
    return "\n".join(lines).rstrip() + "\n"


def write_trend(trend: Trend, names: Mapping[str, Name], folder: Path) -> list[Path]:
    """SVG, PDF, PNG, CSV and Markdown of each study; returns their paths."""
    from scalestudy.figures.render import render
    from scalestudy.figures.style import save, styled

    files = []
    for study, series in by_study(trend, names).items():
        title = series[0][0].title
        with styled():
            files += save(render(chart(trend, title, series)), folder / f"{study}.svg")
        for suffix, text in (("csv", as_csv(trend, series)), ("md", as_markdown(trend, title, series))):
            files.append(folder / f"{study}.{suffix}")
            write_text(files[-1], text)
    return files
