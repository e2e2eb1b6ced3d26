"""A study file: one question, what is varied to answer it, and its figures. One file in config/studies/."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from scalestudy.claims.model import AnyClaim
from scalestudy.errors import UserError
from scalestudy.figures.catalogue import AnswerSpec, FigureSpec, TableSpec
from scalestudy.spec.base import NAME, Spec, printable, refused
from scalestudy.spec.machine_axes import KEYS, HostWord, MachineAxis
from scalestudy.spec.run import MAX_REPEATS


class Labelled(Spec):
    """`{value: …, label: …}` in place of a value."""

    value: Any = None
    """The value; left out: the key has none."""
    label: str | int | float | None = None
    """Its name in figures and tables; unset: the value itself."""


def _kind_of_axis(axis: Any) -> str:
    is_machine = isinstance(axis, MachineAxis) or (isinstance(axis, dict) and "to" in axis)
    return "machine" if is_machine else "hosts" if isinstance(axis, str) else "list"


def _kind_of_value(value: Any) -> str:
    is_labelled = isinstance(value, dict) and ("value" in value or set(value) == {"label"})
    return "labelled" if is_labelled or isinstance(value, Labelled) else "plain"


def _equally_long(axes: dict[str, Any]) -> dict[str, Any]:
    sizes = {key: len(values) for key, values in axes.items()}
    if len(set(sizes.values())) > 1:
        what = ", ".join(f"{key} has {size}" for key, size in sizes.items())
        raise refused(f"keys that vary together need equally many values: {what}", "give each key one value per point")
    return axes


def _set_by_machine(axes: dict[str, Any]) -> dict[str, Any]:
    for key, axis in axes.items():
        if isinstance(axis, str) and key != "nodes":
            what = f"`{axis}` stands for nodes by name, and `{key}` has none"
            raise refused(what, f"write `nodes: {axis}`, or `[{axis}]` for the word", key)
        if isinstance(axis, MachineAxis) and key not in KEYS:
            what = f"`{key}` has no end that a machine sets"
            raise refused(what, f"write a list, or vary {', '.join(f'`{each}`' for each in KEYS)} so", key)
    return axes


Value = Annotated[Annotated[Any, Tag("plain")] | Annotated[Labelled, Tag("labelled")], Discriminator(_kind_of_value)]
Values = Annotated[list[Value], Field(min_length=1)]
Axes = Annotated[dict[str, Values], AfterValidator(_equally_long)]
VaryAxis = Annotated[
    Annotated[Values, Tag("list")] | Annotated[MachineAxis, Tag("machine")] | Annotated[HostWord, Tag("hosts")],
    Discriminator(_kind_of_axis),
]
VaryAxes = Annotated[dict[str, VaryAxis | None], AfterValidator(_set_by_machine)]
EMPTY: dict[str, Any] = {
    "repeats": 1,
    "zip": [],
    "exclude": [],
    "include": [],
    "figures": [],
    "tables": [],
    "answers": [],
}
"""Parts of a study that neither its file nor the scale sets."""

RESERVED = ("all", "claims", "dataset", "figure", "judge", "report", "spec", "study", "summarise", "table", "train")
"""Names of the rules in workflow/rules/, which are targets of Snakemake as names of studies are."""


def is_study_name(name: str) -> bool:
    """Whether a study can have this name, which is a part of paths too."""
    return re.fullmatch(NAME, name) is not None and name not in RESERVED


def refuse_study_name(name: str, where: str) -> None:
    """UserError for a name that no study can have."""
    if not is_study_name(name):
        remedy = "use at most 64 lower-case letters, digits and `_`, starting with a letter, and not the name of a rule"
        raise UserError(f"`{printable(name)}` cannot be the name of a study", where, remedy)


class ScaleSpec(Spec):
    """What a scale may set anew: maps are merged, lists replaced, null removes."""

    base: dict[str, Any] = {}
    """The run that everything else is a variation of: keys of a run. A scale's map with another `source` or `name` replaces
    that of the file."""
    vary: VaryAxes = {}
    """Dotted key to values; all are crossed. A value may be `{value: …, label: …}`. Of `ranks`, `nodes` and `loader.workers`,
    `{to: machine}` is 1, 2, 4, … up to what the machine has; `{to: node}`, up to what one node has. `nodes: each` is every
    node of the machine by name, `nodes: pairs` every two of them, with `ranks_per_node` ranks or one per device."""
    zip: list[Axes] | Axes | None = None
    """Dotted keys that vary together: one axis, or a list of axes."""
    exclude: list[dict[str, Any]] | None = None
    """Combinations left out: each a map of dotted keys to values that must all agree."""
    include: list[dict[str, Value]] | None = None
    """Single combinations added on top of `base`: each a map of dotted keys to values, with `repeats` where fewer do."""
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS)] | None = None
    """How often each configuration is measured; unset: once."""
    figures: list[FigureSpec] | None = None
    """What is drawn."""
    tables: list[TableSpec] | None = None
    """What is tabulated."""
    answers: list[AnswerSpec] | None = None
    """The answer to the question, one sentence or two; without any, the first figure of lines or bars is put into words."""
    target_accuracy: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Held-out accuracy (or AUROC, where there is no accuracy) whose first time is the column `time_to_accuracy_s`."""
    cannot_show: str | None = None
    """What of the question the scale cannot answer, and why; a sentence."""


class StudySpec(ScaleSpec):
    """A study file, as it is at the scale `paper`."""

    question: str
    """What the study answers, as a question."""
    title: str | None = None
    """Its name in reports; unset: the file's name."""
    source: str = ""
    """Where the experiment comes from: document, section, figure."""
    explain: bool = False
    """Of a `program`: one more run per configuration says where the time of a step goes, as `scalestudy explain` does."""
    scales: dict[Literal["mini", "node"], ScaleSpec] = {}
    """`mini` and `node`, as changes to the keys from `base` to `cannot_show` of the file, which is `paper`: maps are merged, lists
    replaced, null removes."""
    claims: list[AnyClaim] = []
    """Statements of our own that runs are judged against; those of documents are in config/claims/."""

    def at(self, scale: str) -> ScaleSpec:
        """Changes of one scale."""
        return next((change for name, change in self.scales.items() if name == scale), ScaleSpec())

    def part(self, scale: str, key: str) -> Any:
        """A part that a scale may replace, as that scale has it."""
        values = getattr(self.at(scale), key), getattr(self, key), EMPTY.get(key)
        return next((value for value in values if value is not None), None)
