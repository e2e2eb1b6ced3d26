"""From rows to a chart: which runs, which panels, which lines. What each kind of figure has in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from scalestudy.analysis.scaling import Base, bases
from scalestudy.analysis.stats import interval, interval_of, own_half_width
from scalestudy.analysis.summarise import kind_of, kind_of_all
from scalestudy.analysis.workload import workload_of
from scalestudy.figures import notes
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Group, Row, by, grouped, selected
from scalestudy.figures.palette import styles
from scalestudy.figures.reference import Published, drawable, published_lines, read_reference, why_none
from scalestudy.figures.words import column_label, listed, unit_of, value_text
from scalestudy.files import canonical_json
from scalestudy.spec.columns import on_logarithms
from scalestudy.spec.study import Study

__all__ = ["Drawing", "Row", "chart_over", "is_number", "point_of", "selected"]


@dataclass(frozen=True)
class Drawing:
    """What a kind of figure fixes."""

    y: str
    x: str
    log_x: bool = False
    log_y: bool = False
    ideal: Literal["none", "time", "throughput", "one"] = "none"
    bars: bool = False
    """A bar for each value of x, whatever it is, in place of a line."""
    prediction: str | None = None
    """Drawn hollow under the label of what it predicts."""


def chart_over(
    study: Study, figure: FigureSpec, rows: pd.DataFrame, drawing: Drawing, left_out: pd.DataFrame | None = None
) -> Chart:
    """A chart of `drawing.y` over `drawing.x`; `left_out` are rows that are not drawn but may be a base of comparison."""
    runs = selected(rows, figure.where)
    series = figure.series or "strategy"
    published = read_reference(figure.reference) if figure.reference else []
    groups = grouped(study, figure, runs, series, drawing.x)
    looks = styles(study, series, groups)
    categories = categories_of(study, drawing.x, runs)
    mark = (figure.mark.x, figure.mark.label) if figure.mark else None

    def bar_names(group: Group) -> dict[str, str]:
        return categories_of(study, drawing.x, group.runs, always=True)

    rows = rows if left_out is None else pd.concat([rows, left_out])
    of_group = bases_of(study, rows, groups)
    panels = [
        replace(
            _panel(
                figure,
                drawing,
                group,
                looks,
                bar_names(group) if drawing.bars else categories,
                published,
                series,
                _ideal_rate(rows, found, drawing.y),
            ),
            mark=mark,
        )
        for group, found in zip(groups, of_group, strict=True)
    ]
    lines = [line for panel in panels for line in panel.lines]
    shown = [row for group in groups for row in drawable(published, group.runs, drawing.x, drawing.y, series)]
    return Chart(
        figure.title or "",
        tuple(panels),
        tuple(
            filter(
                None,
                [
                    notes.repeats(lines),
                    notes.extrapolated(lines),
                    notes.factors(runs, lines),
                    notes.emulated(runs),
                    notes.by_construction(runs, shown),
                    *(group.note for group in groups),
                    *_base_notes(drawing, panels, of_group),
                    *dict.fromkeys(panel.shaded_why for panel in panels),
                    *_citations(published, shown, runs, drawing, series),
                    notes.missing(runs),
                    *notes.trust(runs),
                ],
            )
        ),
        tuple(dict.fromkeys(row["source"] for row in shown)),
    )


def bases_of(study: Study, rows: pd.DataFrame, groups: Sequence[Group]) -> list[list[Base]]:
    """For each panel the bases of the workloads that it shows."""
    found, workload = bases(rows, study), workload_of(study)
    return [
        [found[name] for name in dict.fromkeys(workload[row["run"]] for row in group.runs) if name in found]
        for group in groups
    ]


def _ideal_rate(rows: pd.DataFrame, found: Sequence[Base], column: str) -> tuple[int, float] | None:
    """Where ideal scaling begins: the rank count of a panel's only base, and the mean of the column over its runs."""
    if len(found) != 1:
        return None
    values = rows.loc[rows["run"].isin(found[0].runs), column]
    mean = interval(values.tolist(), on_logarithms(column)) if column in rows else None
    return None if mean is None else (found[0].ranks, mean.mean)


def _base_notes(drawing: Drawing, panels: Sequence[Panel], of_group: Sequence[Sequence[Base]]) -> list[str]:
    """What efficiencies, or the line of ideal scaling, are relative to."""
    if drawing.y.startswith("own_"):
        return ["Each series over its own smallest number of ranks"]
    ideal = any(line.role == "ideal" for panel in panels for line in panel.lines)
    if drawing.y not in ("efficiency", "speedup") and not ideal:
        return []
    shown = [
        (panel.title, base) for panel, found in zip(panels, of_group, strict=True) for base in found if panel.lines
    ]
    return notes.bases(shown)


def _panel(
    figure: FigureSpec,
    drawing: Drawing,
    group: Group,
    looks: dict[str, tuple[int, int]],
    categories: dict[str, str],
    published: list[Published],
    series: str,
    base: tuple[int, float] | None,
) -> Panel:
    x, y = drawing.x, drawing.y
    lines = []
    for label, members in group.lines.items():
        for column in filter(None, (drawing.prediction, y)):
            if points := _points(members, x, column, categories):
                lines.append(Line(label, points, "bar" if drawing.bars else "series", *looks[label], not categories))
    blank = "" if lines else _why_blank(group.runs, y)
    beside = published_lines(published, group.runs, x, y, series) if lines and not categories else []
    guide = _ideal(lines, drawing.ideal, base) if lines and not categories else None
    log_x = drawing.log_x if figure.log_x is None else figure.log_x
    log_y = drawing.log_y if figure.log_y is None else figure.log_y
    places = {point.x for line in (*lines, *beside) for point in line.points}
    values = [point.y for line in lines for point in line.points]
    share = drawing.ideal == "one"
    return Panel(
        group.title,
        Axis(
            column_label(x),
            unit_of(x),
            log_x and not categories and min(places, default=1) > 0,
            tuple(sorted(places)) if not categories and _counts(places) else (),
            tuple(categories.values()),
        ),
        Axis(
            column_label(y),
            unit_of(y),
            log_y and min(values, default=1) > 0,
            limits=(0.0, _top(lines)) if share else None,
        ),
        (*([guide] if guide else []), *beside, *lines),
        *(_shaded(group.runs) if x == "ranks" and not categories else (None, "")),
        blank,
    )


def _top(lines: Sequence[Line]) -> float:
    """The end of an axis of efficiencies: 1.1, more where more was measured, but not for a wide interval."""
    points = [point for line in lines for point in line.points]
    return max([1.1, *(point.y for point in points), *(min(point.high or 0.0, 1.5) for point in points)])


def _points(members: Sequence[Row], x: str, y: str, categories: dict[str, str]) -> tuple[Point, ...]:
    """One point per configuration with a valid number, from left to right."""
    points = []
    number_of = {category: number for number, category in enumerate(categories)}
    for runs in by(members, "configuration").values():
        valid = [row for row in runs if row["status"] == "valid" and is_number(row.get(y))]
        across = [row.get(x) for row in valid]
        values = interval_of(valid, y)
        if values is None:
            continue
        if categories:
            place: float | None = float(number_of[canonical_json(across[0])])
        else:
            mean = interval([float(value) for value in across if value is not None])
            place = None if mean is None else mean.mean
        if place is not None:
            points.append(point_of(valid, y, place))
    return tuple(sorted(points, key=lambda point: point.x))


def point_of(valid: Sequence[Row], column: str, place: float) -> Point:
    """Mean and interval of a column over the valid runs of one configuration, and what is to be known of them."""
    values = interval_of(valid, column)
    assert values is not None
    kind: Any = kind_of_all([kind_of(row, column) for row in valid])
    own = [half for row in valid if (half := own_half_width(row, column)) is not None]
    return Point(
        place, values.mean, values.low, values.high, values.n, kind, tuple(float(row[column]) for row in valid),
        any(row["emulated"] for row in valid), sum(bool(row["disturbed"]) for row in valid), own=max(own, default=None),
    )  # fmt: skip


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _counts(places: set[float]) -> bool:
    """Whether these are few whole numbers, such as ranks, so that each gets its tick."""
    return 0 < len(places) <= 12 and all(place == int(place) and place < 1e5 for place in places)


def categories_of(study: Study, x: str, runs: Sequence[Row], always: bool = False) -> dict[str, str]:
    """What stands below each value of an axis that is not a number axis (or of any, `always`), in the study's order."""
    values = [row.get(x) for row in runs]
    if not always and all(value is None or isinstance(value, float) or is_number(value) for value in values):
        return {}
    return {canonical_json(value): value_text(study, x, value) for value in values}


def _ideal(lines: Sequence[Line], kind: str, base: tuple[int, float] | None) -> Line | None:
    """Ideal scaling from the common base, drawn as far as measured; none where a panel has no base, or several."""
    first = min(point.x for line in lines for point in line.points)
    last = max(point.x for line in lines for point in line.points)
    if kind == "one":
        return Line("ideal", (Point(first, 1.0), Point(last, 1.0)), "ideal")
    if kind == "none" or base is None or first == last:
        return None
    ranks, start = base
    at = [start * ranks / x if kind == "time" else start * x / ranks for x in (first, last)]
    return Line("ideal scaling", (Point(first, at[0]), Point(last, at[1])), "ideal")


SHARED = "more threads than cores: not a scaling result"
SHARED_EXCHANGE = (
    "exchange shares cores: more ranks and servers than cores exchange on a host, whose compute is emulated"
)


def _shaded(runs: Sequence[Row]) -> tuple[float | None, str]:
    """The smallest rank count from which on all valid runs share cores, and how they do."""
    valid = [row for row in runs if row["status"] == "valid"]
    crowded = [row for row in valid if _shares_cores(row)]
    roomy = [row["ranks"] for row in valid if not _shares_cores(row)]
    beyond = [row for row in crowded if row["ranks"] > max(roomy, default=0)]
    if not beyond:
        return None, ""
    why = dict.fromkeys(SHARED_EXCHANGE if row["emulated"] else SHARED for row in beyond)
    return float(min(row["ranks"] for row in beyond)), "Shaded: " + "; ".join(why)


def _shares_cores(row: Row) -> bool:
    return bool(row["exchange_shares_cores"] if row["emulated"] else row["oversubscribed"])


def _why_blank(runs: Sequence[Row], y: str) -> str:
    if not any(row["status"] == "valid" for row in runs):
        return "No valid run yet: " + notes.missing(runs).partition(": ")[2]
    if y in ("efficiency", "speedup") and all(row["oversubscribed"] for row in runs if row["status"] == "valid"):
        return "No run without shared cores"
    return f"No valid run has measured this: {column_label(y).lower()}"


def _citations(
    published: list[Published], shown: list[Published], runs: Sequence[Row], drawing: Drawing, series: str
) -> list[str]:
    """Where published numbers come from and what to know about them, or why they are not drawn."""
    if not published:
        return []
    cited = listed(dict.fromkeys(row.get("citation") or row["source"] for row in shown or published), 5)
    if not shown:
        return [
            f"Published numbers of {cited} are not drawn: {why_none(published, runs, drawing.x, drawing.y, series)}"
        ]
    remarks = list(dict.fromkeys(row["note"] for row in shown if row.get("note")))
    kinds = {row.get("kind") for row in shown}
    what = "Derived from published numbers" if kinds == {"derived"} else "Published"
    return [f"{what}: {cited}" + (f" ({listed(remarks, 4)})" if remarks else "")]
