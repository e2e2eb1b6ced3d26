"""Charts from rows: the runs, panels, lines and notes that all kinds of figure share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from scalestudy.analysis.scaling import Base, bases
from scalestudy.analysis.stats import CENSORED, interval, interval_of, own_half_width
from scalestudy.analysis.workload import workload_of
from scalestudy.figures import notes
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Group, Looks, Row, by, disturbed, grouped, selected, styles
from scalestudy.figures.reference import Published, Reference, read_reference
from scalestudy.files import canonical_json
from scalestudy.spec.columns import MEASURED, SHARES, is_number, kind_of, kind_of_all, on_logarithms
from scalestudy.spec.labels import column_label, listed, unit_of, value_text
from scalestudy.spec.run import emulated_parts, is_compute_emulated
from scalestudy.spec.study import Study

MAX_TICKED = 12
"""Whole numbers on an axis that all get a tick."""
SHARE = (0.0, 1.0)
MAX_EFFICIENCY = 1.5
"""End of an axis of efficiencies, of which none is larger: a wide interval stretches it no further."""
SHARED = "more threads than cores: not a scaling result"
SHARED_EXCHANGE = (
    "exchange shares cores: more ranks and servers than cores exchange on a host, whose compute is emulated"
)


@dataclass(frozen=True)
class Drawing:
    """Scales and guides that a kind of figure fixes."""

    log_x: bool = False
    log_y: bool = False
    ideal: Literal["none", "time", "throughput", "one"] = "none"
    bars: bool = False
    """A bar for each value of x in place of a line."""


def drawing_of(kind: Drawing, figure: FigureSpec, runs: Sequence[Row]) -> Drawing:
    """The kind's drawing with the figure's own scales; in bars where x has at most two values, which a line would join, and
    nothing needs its scale."""
    drawing = replace(
        kind,
        log_x=kind.log_x if figure.log_x is None else figure.log_x,
        log_y=kind.log_y if figure.log_y is None else figure.log_y,
    )
    if figure.axes[0] in MEASURED or drawing.ideal == "one" or figure.log_y or figure.reference or figure.mark:
        return drawing
    is_short = len({canonical_json(row.get(figure.axes[0])) for row in runs}) <= 2
    return replace(drawing, bars=True, log_y=False) if is_short else drawing


def chart_over(
    study: Study, figure: FigureSpec, rows: pd.DataFrame, kind: Drawing, *own: str, every: pd.DataFrame | None = None
) -> Chart:
    """Chart of y over x, with the kind's `own` notes. `every`: all rows that may be a base of comparison."""
    runs = selected(rows, figure.where)
    drawing = drawing_of(kind, figure, runs)
    x, y = figure.axes
    reference = Reference(read_reference(figure.reference) if figure.reference else [], x, y, figure.series)
    groups = grouped(study, figure, runs, x)
    looks = styles(study, figure.series, groups)
    base_rows = rows if every is None else every
    workload_bases, workload = bases(base_rows, study), workload_of(study)
    panels: list[Panel] = []
    shown: list[Published] = []
    shown_bases: list[tuple[str, Base]] = []
    for group in groups:
        names = dict.fromkeys(workload[row["run"]] for row in group.runs)
        group_bases = [workload_bases[name] for name in names if name in workload_bases]
        categories = _categories(study, x, group.runs if drawing.bars else runs, drawing.bars)
        lines = _lines(figure, drawing, group, looks, categories)
        guides: list[Line] = []
        if lines and not categories:
            guides = _ideal(lines, drawing.ideal, _base_rate(base_rows, group_bases, y)) + reference.lines(group.runs)
            shown += reference.drawable(group.runs)
        panels.append(_panel(figure, drawing, group, lines, guides, categories))
        shown_bases += [(group.title, base) for base in group_bases if lines]
    note_texts = [
        notes.by_construction(runs, shown),
        notes.censored(runs, y),
        *own,
        *_base_notes(y, panels, shown_bases),
        *(panel.shaded_why for panel in panels),
        reference.citation(shown, runs),
    ]
    sources = tuple(dict.fromkeys(row["source"] for row in shown))
    in_bases = {run for _, base in shown_bases for run in base.runs} if y == "efficiency" else set()
    base_runs = [row for row in selected(base_rows, {}) if row["run"] in in_bases]
    return replace(finished(figure, runs, groups, panels, *note_texts, base_runs=base_runs), sources=sources)


def finished(
    figure: FigureSpec,
    runs: Sequence[Row],
    groups: Sequence[Group],
    panels: Sequence[Panel],
    *own: str,
    base_runs: Sequence[Row] = (),
) -> Chart:
    """Chart of panels, with the notes of every kind around the kind's own. `base_runs` are those that numbers are relative to."""
    lines = [line for panel in panels for line in panel.lines]
    note_texts = (
        *notes.extrapolated(runs, lines),
        notes.emulated(runs),
        *(group.note for group in groups),
        *own,
        notes.missing(runs),
        *notes.trust([*{row["run"]: row for row in (*runs, *base_runs)}.values()]),
    )
    blank = Panel("", Axis(""), Axis(""), (), blank=notes.not_yet(runs) or "No run belongs into this figure")
    return Chart(figure.title or "", tuple(panels) or (blank,), tuple(dict.fromkeys(filter(None, note_texts))))


def _base_rate(rows: pd.DataFrame, panel_bases: Sequence[Base], column: str) -> tuple[int, float] | None:
    """Start of ideal scaling: the rank count of a panel's only base, and the mean of the column over its runs."""
    if len(panel_bases) != 1 or column not in rows:
        return None
    mean = interval(rows.loc[rows["run"].isin(panel_bases[0].runs), column].tolist(), on_logarithms(column))
    return None if mean is None else (panel_bases[0].ranks, mean.mean)


def _base_notes(y: str, panels: Sequence[Panel], shown_bases: Sequence[tuple[str, Base]]) -> list[str]:
    """The base of efficiencies or of the line of ideal scaling."""
    if y.startswith("own_"):
        return [
            "Each series over its own fewest ranks, or over one rank without exchange if it exchanges nothing there"
        ]
    ideal = any(line.role == "ideal" for panel in panels for line in panel.lines)
    return notes.bases(shown_bases) if ideal or y == "efficiency" else []


def _categories(study: Study, x: str, runs: Sequence[Row], bars: bool) -> dict[str, str]:
    """Texts below bars, or below the values of an axis of names, in the study's order, numbers ascending; empty for an axis
    of numbers. A key without a value, such as no limit, has no place among numbers: its axis is one of names."""
    values: list[Any] = [row.get(x) for row in runs]
    are_numbers = all(map(is_number, values))
    if not bars and (are_numbers or x in MEASURED):
        return {}
    values = sorted(values) if are_numbers else values
    return {canonical_json(value): value_text(study, x, value) for value in values}


def _lines(figure: FigureSpec, drawing: Drawing, group: Group, looks: Looks, categories: dict[str, str]) -> list[Line]:
    """Lines or bars of a panel, each prediction before the values that it predicts."""
    role: Literal["bar", "series"] = "bar" if drawing.bars else "series"
    x, y = figure.axes
    return [
        Line(label, points, role, *looks[label], connected=not categories)
        for label, members in group.lines.items()
        for column in filter(None, (figure.prediction, y))
        if (points := _points(members, x, column, list(categories)))
    ]


def _points(members: Sequence[Row], x: str, y: str, categories: list[str]) -> tuple[Point, ...]:
    """One point per configuration with a valid number, from left to right."""
    points = []
    for runs in by(members, "configuration").values():
        valid = [row for row in runs if row["status"] == "valid" and is_number(row.get(y))]
        if any(row["status"] == "valid" and row.get(f"{y}_kind") == CENSORED for row in runs):
            continue  # the mean of the others would be one of a selection
        if valid and categories:
            points.append(point_of(valid, y, float(categories.index(canonical_json(valid[0].get(x))))))
        elif mean := interval([float(row[x]) for row in valid if row.get(x) is not None]):
            points.append(point_of(valid, y, mean.mean))
    return tuple(sorted(points, key=lambda point: point.x))


def point_of(valid: Sequence[Row], column: str, place: float) -> Point:
    """Mean and interval of a column over the valid runs of one configuration, with kind, emulation and disturbance."""
    values = interval_of(valid, column)
    assert values is not None
    kind: Any = kind_of_all([kind_of(row, column) for row in valid])
    own = [half for row in valid if (half := own_half_width(row, column)) is not None]
    return Point(
        place, values.mean, values.low, values.high, values.n, kind, tuple(float(row[column]) for row in valid),
        emulated_parts(valid, column), disturbed(valid), own=max(own, default=None),
    )  # fmt: skip


def _ideal(lines: Sequence[Line], kind: str, base: tuple[int, float] | None) -> list[Line]:
    """Ideal scaling from the panel's base, as far as measured; none where a panel has no base, or several."""
    places = [point.x for line in lines for point in line.points]
    first, last = min(places), max(places)
    if kind == "one":
        return [Line("ideal", (Point(first, 1.0), Point(last, 1.0)), "ideal")]
    if kind == "none" or base is None or first == last:
        return []
    ranks, start = base
    at = [start * ranks / x if kind == "time" else start * x / ranks for x in (first, last)]
    return [Line("ideal scaling", (Point(first, at[0]), Point(last, at[1])), "ideal")]


def _panel(
    figure: FigureSpec,
    drawing: Drawing,
    group: Group,
    lines: list[Line],
    guides: list[Line],
    categories: dict[str, str],
) -> Panel:
    x, y = figure.axes
    places = {point.x for line in (*guides, *lines) if line.role != "ideal" for point in line.points}
    values = [value for line in lines for point in line.points for value in (point.y, *point.repeats)]
    log_x = drawing.log_x and not categories and min(places, default=1) > 0
    few = 0 < len(places) <= MAX_TICKED and all(place == int(place) and place < 1e5 for place in places)
    ticks = tuple(sorted(places)) if few and not categories else ()
    limits = (0.0, max([MAX_EFFICIENCY, *values])) if drawing.ideal == "one" else SHARE if y in SHARES else None
    shaded_from, shaded_why = _shaded(drawing, group.runs) if x == "ranks" else (None, "")
    if shaded_from is not None and categories:
        shaded_from = list(categories).index(canonical_json(shaded_from))
    x_unit = "" if any(map(str.isalpha, "".join(categories.values()))) else unit_of(x)  # a label has its own
    return Panel(
        group.title,
        Axis(column_label(x), x_unit, log_x, ticks, tuple(categories.values())),
        Axis(column_label(y), unit_of(y), drawing.log_y and min(values, default=1) > 0, limits=limits),
        (*guides, *lines),
        None if shaded_from is None else float(shaded_from),
        shaded_why,
        "" if lines else notes.not_yet(group.runs) or _unmeasured(group.runs, y),
        (figure.mark.x, figure.mark.label) if figure.mark and not categories else None,
    )


def _shaded(drawing: Drawing, runs: Sequence[Row]) -> tuple[int | None, str]:
    """The smallest rank count from which on all valid runs share cores, how they do, and which others do."""
    valid = [row for row in runs if row["status"] == "valid"]
    if drawing.ideal == "one":  # real compute that shares cores has no efficiency
        valid = [row for row in valid if is_compute_emulated(row) or not row["oversubscribed"]]
    crowded = [row for row in valid if row["exchange_shares_cores" if is_compute_emulated(row) else "oversubscribed"]]
    limit = max((row["ranks"] for row in valid if row not in crowded), default=0)
    beyond = [row for row in crowded if row["ranks"] > limit]
    others = [
        f"{row['strategy']} on {row['ranks']} ranks".replace("_", " ") for row in crowded if row["ranks"] <= limit
    ]
    sentences = ["Shaded: " + "; ".join(dict.fromkeys(map(_how_shared, beyond)))] if beyond else []
    if others:  # a server beside the ranks takes a core, where a run of as many ranks without one has enough
        sentences.append(f"Not shaded, though they share cores: {listed(dict.fromkeys(others))}")
    return min((int(row["ranks"]) for row in beyond), default=None), ". ".join(sentences)


def _how_shared(row: Row) -> str:
    return SHARED_EXCHANGE if is_compute_emulated(row) else SHARED


def _unmeasured(runs: Sequence[Row], y: str) -> str:
    if y == "efficiency" and all(row["oversubscribed"] for row in runs if row["status"] == "valid"):
        return "No run without shared cores"
    return f"No valid run has measured this: {column_label(y).lower()}"
