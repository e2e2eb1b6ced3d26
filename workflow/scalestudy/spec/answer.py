"""Answer: a sentence that a study's numbers complete, and the problems of one before any run is made."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from scalestudy.errors import Problem, UserError
from scalestudy.spec.base import Name, Spec, shown, suggest
from scalestudy.spec.check_figures import choice_problems
from scalestudy.spec.columns import MEASURED
from scalestudy.spec.step_times import published_rows

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

PER_CENT = "%"
"""Format of a share in per cent."""
HALF_WIDTH = "±%"
"""Format of a number's half-width alone, in per cent of the number."""
OWN_UNIT = "unit"
"""Format of a number in the unit of its column that suits it, with the unit: `4.2 GB/s`."""
FORMATS = (PER_CENT, HALF_WIDTH, OWN_UNIT)


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
    """The sentence, with `{name}` where a number stands; `{name:unit}` has its unit, `{name:%}` is in per cent,
    `{name:±%}` is its half-width."""
    numbers: dict[Name, NumberSpec] = {}
    """The numbers by name: each of `column` and `where`, of `accelerator`, `model` and `batch`, or of `ratio`."""

    def __str__(self) -> str:
        """Its first words, for messages."""
        return f"“{(self.say.partition('{')[0] or self.say).strip()} …”"


def fields_of(say: str) -> Iterator[tuple[str, str | None, str]]:
    """Text, name of a number and its format, in turn; after the last text no name. ValueError for a lone brace."""
    for text, name, form, _ in string.Formatter().parse(say):
        yield text, name, form or ""


def answer_problems(study: Study, rows: Sequence[Mapping[str, Any]], keys: Collection[str]) -> Iterator[Problem]:
    """Numbers that an answer does not define, columns that are not among `keys`, configurations not among `rows`."""
    for index, answer in enumerate(study.answers):
        path = ("answers", index, "say")
        try:
            asked = [(name, form) for _, name, form in fields_of(answer.say) if name is not None]
        except ValueError as error:
            yield Problem(path, f"cannot be read: {error}", "write {{ for a brace")
            continue
        for name, form in asked:
            if name not in answer.numbers:
                yield Problem(path, f"no number is named {shown(name)}", suggest(name, answer.numbers))
            if form not in ("", *FORMATS):
                yield Problem(path, f"{shown(form)} is no format of a number", f"there is {', '.join(FORMATS)}")
            column = answer.numbers[name].column if name in answer.numbers else None
            if form == PER_CENT and column in MEASURED and MEASURED[column].unit:
                yield Problem(path, f"`{column}` is no share", f"{{{name}:{OWN_UNIT}}} writes it in its own unit")
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
    elif number.accelerator is not None:
        try:
            published_rows(number.model or "", number.accelerator, number.batch or 1)
        except UserError as error:
            yield Problem(("accelerator",), error.what, error.remedy)
