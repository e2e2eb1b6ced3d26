"""Answer: a sentence that a study's numbers complete, and the problems of one before any run is made."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from scalestudy.errors import Problem, UserError
from scalestudy.spec.base import Spec, shown, suggest
from scalestudy.spec.columns import MEASURED, agrees
from scalestudy.spec.step_times import published_rows

UNITS = {"": 1.0, "%": 0.01, "ms": 1e-3, "min": 60.0, "h": 3600.0, "MiB": 2.0**20, "GiB": 2.0**30}
"""Units that a number may be written in, each as a factor on the column's own unit."""
HALF_WIDTH = "±%"
"""Format of a number's half-width alone, in per cent of the number."""
OWN_UNIT = "unit"
"""Format of a number in the unit of its column that suits it, with the unit: `4.2 GB/s`."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


class NumberSpec(Spec):
    """One number: a measured `column`, a published training rate (`accelerator`), or a `ratio` of two numbers."""

    column: str | None = None
    """Measured column, as its mean over the runs of one configuration."""
    where: dict[str, Any] = {}
    """Values of keys that choose the one configuration of `column`."""
    accelerator: str | None = None
    """Name in config/reference/step_times.csv: its published training rate, samples/s."""
    model: str | None = None
    """Model of `accelerator`."""
    batch: Annotated[int, Field(ge=1)] | None = None
    """Batch of `accelerator`."""
    ratio: tuple[Name, Name] | None = None
    """Names of two numbers that stand above: the first over the second."""


class AnswerSpec(Spec):
    """One sentence of the answer to a study's question, left out where one of its numbers is missing or invalid."""

    say: Annotated[str, Field(min_length=1, max_length=400)]
    """The sentence, with `{name}` where a number stands; `{name:ms}` writes it in that unit, `{name:±%}` its half-width,
    `{name:unit}` the unit of its column that suits it."""
    numbers: dict[Name, NumberSpec] = {}
    """The numbers by name: each of `column` and `where`, of `accelerator`, `model` and `batch`, or of `ratio`."""


def fields_of(say: str) -> Iterator[tuple[str, str | None, str]]:
    """Text, name of a number and its format, in turn; after the last text no name. ValueError for a lone brace."""
    for text, name, form, _ in string.Formatter().parse(say):
        yield text, name, form or ""


def configurations(runs: Any, where: Mapping[str, Any]) -> list[str]:
    """The configurations of a study's runs that agree with `where`."""
    rows: dict[str, dict[str, Any]] = {}
    for run in runs:
        rows.setdefault(run.configuration, run.columns)
    return [name for name, row in rows.items() if agrees(row, where)]


def answer_problems(runs: Any, answers: tuple[AnswerSpec, ...], depends_on_machine: bool) -> Iterator[Problem]:
    """Numbers that an answer does not define, columns and configurations that no run has."""
    for index, answer in enumerate(answers):
        path = ("answers", index, "say")
        try:
            asked = [(name, form) for _, name, form in fields_of(answer.say) if name is not None]
        except ValueError as error:
            yield Problem(path, f"cannot be read: {error}", "write {{ for a brace")
            continue
        for name, form in asked:
            if name not in answer.numbers:
                yield Problem(path, f"no number is named {shown(name)}", suggest(name, answer.numbers))
            if form not in (*UNITS, HALF_WIDTH, OWN_UNIT):
                remedy = f"there is {', '.join([*UNITS, HALF_WIDTH, OWN_UNIT][1:])}"
                yield Problem(path, f"{shown(form)} is no format of a number", remedy)
        names = list(answer.numbers)
        for place, (name, number) in enumerate(answer.numbers.items()):
            for key, what, remedy in _number_problems(runs, number, names[:place], depends_on_machine):
                yield Problem(("answers", index, "numbers", name, *key), what, remedy)


def _number_problems(
    runs: Any, number: NumberSpec, above: list[str], depends_on_machine: bool
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Key below the number, sentence and remedy of each problem."""
    if sum(kind is not None for kind in (number.column, number.accelerator, number.ratio)) != 1:
        yield (), "needs one of column, accelerator and ratio", "set one of them"
    elif number.column is not None:
        known = {key for run in runs for key in run.columns}
        unknown = next((key for key in number.where if key not in known), None)
        if number.column not in MEASURED:
            yield ("column",), f"{shown(number.column)} is not measured", suggest(number.column, MEASURED)
        elif unknown is not None:
            yield ("where", unknown), "no run of this study has this key", suggest(unknown, known)
        elif (count := len(configurations(runs, number.where))) != 1 and (count or not depends_on_machine):
            yield ("where",), f"chooses {count} configurations, not one", "name what tells it from the others"
    elif number.ratio is not None:
        for name in (each for each in number.ratio if each not in above):
            yield ("ratio",), f"no number above is named {shown(name)}", suggest(name, above)
    elif number.accelerator is not None:
        try:
            published_rows(number.model or "", number.accelerator, number.batch or 1)
        except UserError as error:
            yield ("accelerator",), error.what, error.remedy
