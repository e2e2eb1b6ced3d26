"""What a study shows: kinds of figure, tables and answers, and their options. Imports no matplotlib: studies are checked where none is."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from scalestudy.spec.base import Name, Spec

PER_CENT = "%"
"""Format of a share in per cent."""
HALF_WIDTH = "±%"
"""Format of a number's half-width alone, in per cent of the number."""
OWN_UNIT = "unit"
"""Format of a number in the unit of its column that suits it, with the unit: `4.2 GB/s`."""
MIB = "MiB"
"""Format of bytes, or bytes a second, beside sizes that are written in MiB."""
BYTES = {"B": 2.0**20, "MiB": 1.0}
"""Units that `MIB` writes, also over another one, and how many of them are 1 MiB."""
FORMATS = (PER_CENT, MIB, HALF_WIDTH, OWN_UNIT)


OVER_RANKS = {
    "time_over_ranks": "training_time_s", "throughput_over_ranks": "throughput_samples_per_s", "efficiency": "efficiency"
}  # fmt: skip
"""What kinds of figure that set both axes draw over `ranks`."""


class MarkSpec(Spec):
    """A place on the horizontal axis worth a thin line: a memory limit, a number of cores."""

    x: float
    """Where, in the unit of the column."""
    label: Annotated[str, Field(min_length=1, max_length=60)]
    """What it is."""


class FigureSpec(Spec):
    """One figure of a study: a file name, what is drawn over what, and which published numbers are drawn with it."""

    kind: Literal[
        "lines", "bars", "stacked", "time_over_ranks", "throughput_over_ranks", "efficiency",
        "accuracy_over_time", "staleness", "timeline",
    ]  # fmt: skip
    """`lines` draws `y` over `x` (in bars where `x` has at most two values, unless `log_y`, `mark` or `reference` is
    set), `bars` a bar per value of `x`; `stacked` the parts of a step for each value of `x`; `timeline` the traced steps
    of a run (`measure.trace_steps`); the other kinds set `x`, `y`, axes and units themselves."""
    name: Name | None = None
    """File name; the kind's own name when unset."""
    title: str | None = None
    """What the figure answers, in a few words."""
    x: str | None = None
    """Column on the horizontal axis (`lines`, `bars`, `stacked`)."""
    y: str | None = None
    """Column on the vertical axis (`lines`, `bars`)."""
    prediction: str | None = None
    """Column with what was predicted of `y`, drawn hollow next to it (`lines` only)."""
    series: str = "strategy"
    """One line per value of this column."""
    panel: str | None = None
    """One panel per value of this column."""
    where: dict[str, Any] = {}
    """Only runs with these values; a list stands for any of its values."""
    log_x: bool | None = None
    """Logarithmic horizontal axis; the kind's own choice when unset."""
    log_y: bool | None = None
    """Logarithmic vertical axis; the kind's own choice when unset."""
    mark: MarkSpec | None = None
    """A thin vertical line with a label."""
    reference: Name | None = None
    """Published numbers drawn as well: `config/reference/<name>.csv`."""

    @property
    def file_name(self) -> str:
        """The name that the figure's files carry."""
        return self.name or self.kind

    @property
    def axes(self) -> tuple[str, str]:
        """Columns on the horizontal and the vertical axis; empty where the kind draws something else."""
        return ("ranks", OVER_RANKS[self.kind]) if self.kind in OVER_RANKS else (self.x or "", self.y or "")

    def __str__(self) -> str:
        """For messages."""
        return f"figure `{self.file_name}`"


class TableSpec(Spec):
    """One table of a study: a row per configuration."""

    name: Name
    """File name."""
    title: str | None = None
    """What the table answers."""
    values: Annotated[tuple[str, ...], Field(min_length=1)]
    """Measured columns, each shown as mean with its interval."""
    where: dict[str, Any] = {}
    """Only runs with these values; a list stands for any of its values."""

    def __str__(self) -> str:
        """For messages."""
        return f"table `{self.name}`"


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
    """The sentence, with `{name}` where a number stands; `{name:unit}` has its unit, `{name:%}` is in per cent, `{name:MiB}`
    in MiB, `{name:±%}` is its half-width."""
    numbers: dict[Name, NumberSpec] = {}
    """The numbers by name: each of `column` and `where`, of `accelerator`, `model` and `batch`, or of `ratio`."""

    def __str__(self) -> str:
        """Its first words, for messages."""
        return f"“{(self.say.partition('{')[0] or self.say).strip()} …”"


def divided(form: str, unit: str) -> tuple[float, str] | None:
    """What a number of this unit is divided by to be written in a format, and the unit then; None where it does not fit."""
    size, slash, other = unit.partition("/")
    if form == MIB:
        return (BYTES[size], MIB + slash + other) if size in BYTES else None
    if form == PER_CENT:
        return None if unit else (0.01, form)
    return 1.0, ""


def fields_of(say: str) -> Iterator[tuple[str, str | None, str]]:
    """Text, name of a number and its format, in turn; after the last text no name. ValueError for a lone brace."""
    for text, name, form, _ in string.Formatter().parse(say):
        yield text, name, form or ""
