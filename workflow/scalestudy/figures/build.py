"""From rows to a chart: which runs, which panels, which lines. What each kind of figure has in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from scalestudy.analysis.identity import varied_columns
from scalestudy.analysis.scaling import Base, bases
from scalestudy.analysis.stats import interval, interval_of, own_half_width
from scalestudy.analysis.summarise import kind_of, kind_of_all
from scalestudy.analysis.workload import workload_of
from scalestudy.figures import notes
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.reference import Published, drawable, published_lines, read_reference, why_none
from scalestudy.figures.words import column_label, listed, unit_of, value_text
from scalestudy.files import canonical_json
from scalestudy.spec.columns import on_logarithms
from scalestudy.spec.matching import matches
from scalestudy.spec.study import Study

Row = dict[str, Any]
OWN_PANEL = ("model", "device", "data.source", "dtype")
"""What differs too much to share axes: without `panel`, each value gets a separate panel."""
DOMINANT = 0.7
MOST_LINES = 6


@dataclass(frozen=True)
class Drawing:
    """What a kind of figure fixes."""

    y: str
    x: str
    log_x: bool = False
    log_y: bool = False
    ideal: Literal["none", "time", "throughput", "one"] = "none"
    prediction: str | None = None
    """Drawn hollow under the label of what it predicts."""


def selected(rows: pd.DataFrame, where: Mapping[str, Any]) -> list[Row]:
    """The rows that agree with `where`, as plain dictionaries; a list in `where` stands for any of its values."""
    records = [{str(key): value for key, value in record.items()} for record in rows.to_dict("records")]
    return [row for row in records if all(matches(row.get(key), wanted) for key, wanted in where.items())]


def chart_over(
    study: Study, figure: FigureSpec, rows: pd.DataFrame, drawing: Drawing, left_out: pd.DataFrame | None = None
) -> Chart:
    """A chart of `drawing.y` over `drawing.x`; `left_out` are rows that are not drawn but may be a base of comparison."""
    runs = selected(rows, figure.where)
    series = figure.series or "strategy"
    published = read_reference(figure.reference) if figure.reference else []
    groups = grouped(study, figure, runs, series, drawing.x)
    labels = list(dict.fromkeys(line for group in groups for line in group.lines))
    categories = _categories(study, drawing.x, runs)
    mark = (figure.mark.x, figure.mark.label) if figure.mark else None
    rows = rows if left_out is None else pd.concat([rows, left_out])
    of_group = bases_of(study, rows, groups)
    panels = [
        replace(
            _panel(figure, drawing, group, labels, categories, published, series, _ideal_rate(rows, found, drawing.y)),
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
                    notes.emulated(runs),
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


@dataclass(frozen=True)
class Group:
    """The runs of one panel, line by line."""

    title: str
    runs: list[Row]
    lines: dict[str, list[Row]]
    note: str = ""


def grouped(study: Study, figure: FigureSpec, runs: Sequence[Row], series: str, x: str | None) -> list[Group]:
    """Runs by panel and by line. What else is varied, and would put two configurations on one spot, joins the label.

    Without `panel`, a model, device, data source or number type that has to be told apart gets separate panels; so
    do the series themselves where lines would be too many.
    """
    panel = figure.panel
    if panel is None:
        extras = _extras(study, runs, [series], x)
        panel = next((key for key in extras if key in OWN_PANEL), None)
        if panel is None and extras and len(_by_all(runs, [series, *extras])) > MOST_LINES:
            panel = series
    groups = []
    for members in _by(runs, panel).values():
        extras = _extras(study, members, [series], x)
        assumed = {key: value for key in extras if (value := _dominant(members, key)) is not None and key != "ranks"}
        lines: dict[str, list[Row]] = {}
        mixed = len({row["emulated"] for row in members}) > 1 and "device" not in extras
        for row in members:
            words = [] if panel == series and extras else [value_text(study, series, row.get(series), named=True)]
            words += [
                value_text(study, key, row.get(key), named=True)
                for key in extras
                if canonical_json(row.get(key)) != assumed.get(key)
            ]
            words += ["emulated"] if mixed and row["emulated"] else []
            lines.setdefault(", ".join(words), []).append(row)
        note = ""
        if assumed:
            values = {
                key: next(row.get(key) for row in members if canonical_json(row.get(key)) == value)
                for key, value in assumed.items()
            }
            note = "Unless the legend says otherwise: " + ", ".join(
                value_text(study, key, value, named=True) for key, value in values.items()
            )
        name = "" if panel is None else value_text(study, panel, members[0].get(panel), named=True)
        if name and all(row["emulated"] for row in members) and "emulated" not in name.lower():
            name += ", compute emulated"
        groups.append(
            Group(name[:1].upper() + name[1:] if panel not in (None, "model", "dtype") else name, members, lines, note)
        )
    return groups


def _by(runs: Sequence[Row], key: str | None) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in runs:
        groups.setdefault("" if key is None else canonical_json(row.get(key)), []).append(row)
    return groups


def _by_all(runs: Sequence[Row], keys: list[str]) -> set[str]:
    return {canonical_json([row.get(key) for key in keys]) for row in runs}


def _extras(study: Study, runs: Sequence[Row], keys: list[str], x: str | None) -> list[str]:
    """Varied columns that are needed, in addition to `keys` and x, so that no two configurations share a spot."""
    first = {row["configuration"]: row for row in reversed(runs)}
    places = {name: _place(runs, name, row, x) for name, row in first.items()}

    def spots(extra: list[str]) -> int:
        return len(
            {canonical_json([places[name], *(row.get(key) for key in (*keys, *extra))]) for name, row in first.items()}
        )

    extras: list[str] = []
    while spots(extras) < len(first):
        candidates = [key for key in varied_columns(study) if key not in (*keys, *extras, x)]
        better = [key for key in candidates if spots([*extras, key]) > spots(extras)]
        if not better:
            break
        extras.append(next((key for key in better if key in OWN_PANEL), better[0]))
    return extras


def _place(runs: Sequence[Row], configuration: str, row: Row, x: str | None) -> Any:
    """Where a configuration lies on the horizontal axis: its key, or the mean of what was measured."""
    if x is None:
        return None
    if isinstance(row.get(x), float):
        found = interval([run[x] for run in runs if run["configuration"] == configuration and run["status"] == "valid"])
        return None if found is None else float(f"{found.mean:.4g}")
    return row.get(x)


def _dominant(runs: Sequence[Row], key: str) -> str | None:
    """The value that most configurations have, where nearly all have one."""
    counts = Counter(canonical_json(row.get(key)) for row in {row["configuration"]: row for row in runs}.values())
    value, count = counts.most_common(1)[0]
    return value if len(counts) > 1 and count / counts.total() > DOMINANT else None


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
    labels: list[str],
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
                lines.append(Line(label, points, "series", labels.index(label), not categories))
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
        *(_shaded(group.runs) if x == "ranks" else (None, "")),
        blank,
    )


def _top(lines: Sequence[Line]) -> float:
    """The end of an axis of efficiencies: 1.1, more where more was measured, but not for a wide interval."""
    points = [point for line in lines for point in line.points]
    return max([1.1, *(point.y for point in points), *(min(point.high or 0.0, 1.5) for point in points)])


def _points(members: Sequence[Row], x: str, y: str, categories: dict[str, str]) -> tuple[Point, ...]:
    """One point per configuration with a valid number, from left to right."""
    points = []
    for runs in _by(members, "configuration").values():
        valid = [row for row in runs if row["status"] == "valid" and _is_number(row.get(y))]
        across = [row.get(x) for row in valid]
        values = interval_of(valid, y)
        if values is None:
            continue
        if categories:
            place: float | None = float(list(categories).index(canonical_json(across[0])))
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
        any(row["emulated"] for row in valid), sum(bool(row["disturbed"]) for row in valid), max(own, default=None),
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _counts(places: set[float]) -> bool:
    """Whether these are few whole numbers, such as ranks, so that each gets its tick."""
    return 0 < len(places) <= 12 and all(place == int(place) and place < 1e5 for place in places)


def _categories(study: Study, x: str, runs: Sequence[Row]) -> dict[str, str]:
    """What stands below each value of an axis that is not a number axis, in the order of the study."""
    values = [row.get(x) for row in runs]
    if all(value is None or isinstance(value, float) or _is_number(value) for value in values):
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


SHARED = "more threads than cores, no statement about scaling"
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
