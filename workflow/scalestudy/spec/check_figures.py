"""Check the figures, tables and answers of a study, before any of its runs is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scalestudy.errors import Problem, UserError, nearest
from scalestudy.figures.catalogue import FORMATS, OWN_UNIT, FigureSpec, NumberSpec, TableSpec, divided, fields_of
from scalestudy.spec.base import KeyPath, shown, suggest
from scalestudy.spec.columns import MEASURED, PREDICTED, agrees, matches
from scalestudy.spec.layout import REFERENCES, reference_file
from scalestudy.spec.step_times import published_rows

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

NEEDED = {"lines": ("x", "y"), "bars": ("x", "y"), "stacked": ("x",)}
"""Columns that a kind of figure has to be given."""
COLUMNS = ("x", "y", "prediction", "series", "panel")
"""Keys of a figure whose values are columns."""
OPTIONS = ("log_x", "log_y", "mark", "reference")
USED = {"bars": (), "stacked": (), "accuracy_over_time": ("log_x", "log_y"), "staleness": (), "timeline": ()}
"""The OPTIONS that these kinds of figure draw; other kinds draw all."""


class NoRun(Problem):
    """A choice that no run agrees with."""


def figure_problems(study: Study, rows: Sequence[Mapping[str, Any]], keys: Collection[str]) -> Iterator[Problem]:
    """Figures and tables over columns that no run has, of runs that are not among `rows`, duplicate names, missing files.

    `keys` are those that runs have or may have.
    """
    groups: dict[str, Sequence[FigureSpec | TableSpec]] = {"figures": study.figures, "tables": study.tables}
    columns = {*keys, *MEASURED}
    for group, drawings in groups.items():
        names: set[str] = set()
        for index, drawing in enumerate(drawings):
            path: KeyPath = (group, index)
            name = drawing.file_name if isinstance(drawing, FigureSpec) else drawing.name
            if name in names:
                yield Problem((*path, "name"), f"two {group} have the name `{name}`", "give one of them another name")
            names.add(name)
            for column in drawing.where:
                if column not in columns:
                    yield unknown_column((*path, "where", column), column, columns)
            # Measured columns cannot be judged yet.
            where = {key: value for key, value in drawing.where.items() if key in keys}
            for problem in choice_problems(rows, {"where": where}, keys):
                yield replace(problem, path=(*path, *problem.path))
            if isinstance(drawing, FigureSpec):
                yield from _kind_problems(drawing, columns, path)
            else:
                for position, value in enumerate(drawing.values):
                    if value not in MEASURED:
                        remedy = suggest(value, MEASURED)
                        yield Problem((*path, "values", position), f"{shown(value)} is not measured", remedy)


def unknown_column(path: KeyPath, column: str, columns: Iterable[str]) -> Problem:
    """A column that no run has, with the nearest one that there is."""
    return Problem(path, f"no run of this study has a column {shown(column)}", suggest(column, columns))


def choice_problems(
    rows: Sequence[Mapping[str, Any]],
    choices: Mapping[str, Mapping[str, Any]],
    keys: Collection[str],
    kind: str = "run of this study",
) -> Iterator[Problem]:
    """Find the first reason why no row agrees with all choices; each stands under its key. `keys` may be chosen by."""
    if any(all(agrees(row, given) for given in choices.values()) for row in rows):
        return
    for place, given in choices.items():
        for column, value in given.items():
            if column not in keys:
                yield Problem((place, column), f"no {kind} has a key {shown(column)}", suggest(column, keys))
                return
            if not any(matches(row.get(column), value) for row in rows):
                values = list(dict.fromkeys(shown(row.get(column)) for row in rows))
                what = f"no {kind} has `{column}` {shown(value)}"
                yield NoRun((place, column), what, f"there is {', '.join(values[:10])}")
                return
    keys = " and ".join(f"`{place}`" for place in choices)
    yield NoRun((list(choices)[-1],), f"no {kind} agrees with all of {keys}", "remove a key")


def _kind_problems(figure: FigureSpec, columns: Collection[str], path: KeyPath) -> Iterator[Problem]:
    for key in COLUMNS:
        column = getattr(figure, key)
        if column is not None and column not in columns:
            yield unknown_column((*path, key), column, columns)
    kind, prediction, reference = figure.kind, figure.prediction, figure.reference
    for key in ("x", "y"):
        is_given = getattr(figure, key) is not None
        if key in NEEDED.get(kind, ()) and not is_given:
            yield Problem(path, f"a figure of kind `{kind}` needs `{key}`", f"add `{key}`, the name of a column")
        if is_given and key not in NEEDED.get(kind, ()):
            yield Problem((*path, key), f"a figure of kind `{kind}` sets `{key}` itself", "use kind `lines`")
    if kind == "bars" and figure.x in MEASURED:
        what = f"`{figure.x}` is measured: a bar stands for a value that the study sets"
        yield Problem((*path, "x"), what, "use kind `lines`")
    for key in (key for key in OPTIONS if getattr(figure, key) and key not in USED.get(kind, OPTIONS)):
        what = f"a figure of kind `{kind}` does not draw `{key}`"
        yield Problem((*path, key), what, "leave it out, or use kind `lines`")
    if prediction is not None and (kind != "lines" or prediction not in PREDICTED):
        what = f"`{prediction}` is not a prediction that a figure of kind `{kind}` can show"
        yield Problem((*path, "prediction"), what, f"with kind `lines` there is {', '.join(PREDICTED)}")
    if reference is not None and not (file := reference_file(reference)).is_file():
        files = [each.stem for each in REFERENCES.glob("*.csv")]
        yield Problem((*path, "reference"), f"there is no {file}", nearest(reference, files))


def answer_problems(study: Study, rows: Sequence[Mapping[str, Any]], keys: Collection[str]) -> Iterator[Problem]:
    """Numbers that an answer does not define, columns that are not among `keys`, configurations not among `rows`."""
    for index, answer in enumerate(study.answers):
        path = ("answers", index, "say")
        try:
            placeholders = [(name, form) for _, name, form in fields_of(answer.say) if name is not None]
        except ValueError as error:
            yield Problem(path, f"cannot be read: {error}", "write {{ for a brace")
            continue
        for name, form in placeholders:
            if name not in answer.numbers:
                yield Problem(path, f"no number is named {shown(name)}", suggest(name, answer.numbers))
            if form not in ("", *FORMATS):
                yield Problem(path, f"{shown(form)} is no format of a number", f"there is {', '.join(FORMATS)}")
            column = answer.numbers[name].column if name in answer.numbers else None
            if column in MEASURED and divided(form, unit := MEASURED[column].unit) is None:
                what = f"`{column}` {f'is in {unit}' if unit else 'has no unit'}, which {shown(form)} does not fit"
                yield Problem(path, what, f"{{{name}:{OWN_UNIT}}} writes it in its own unit")
        names = list(answer.numbers)
        for place, (name, number) in enumerate(answer.numbers.items()):
            for problem in _number_problems(study, rows, keys, number, names[:place]):
                yield replace(problem, path=("answers", index, "numbers", name, *problem.path))


def _number_problems(
    study: Study, rows: Sequence[Mapping[str, Any]], keys: Collection[str], number: NumberSpec, above: list[str]
) -> Iterator[Problem]:
    """The problems of a number, with paths below it."""
    if sum(kind is not None for kind in (number.column, number.accelerator, number.ratio)) != 1:
        yield Problem((), "needs one of column, accelerator and ratio", "set one of them")
    elif number.column is not None:
        if number.column not in MEASURED:
            remedy = suggest(number.column, MEASURED)
            yield Problem(("column",), f"{shown(number.column)} is not measured", remedy)
        yield from choice_problems(rows, {"where": number.where}, keys)
        if (count := len(study.configurations(number.where))) > 1:
            remedy = "name what tells it from the others"
            yield Problem(("where",), f"chooses {count} configurations, not one", remedy)
    elif number.ratio is not None:
        for name in (each for each in number.ratio if each not in above):
            yield Problem(("ratio",), f"no number above is named {shown(name)}", suggest(name, above))
    else:
        try:
            published_rows(number.model or "", str(number.accelerator), number.batch or 1)
        except UserError as error:
            yield Problem(("accelerator",), error.what, error.remedy)
