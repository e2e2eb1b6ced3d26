"""A study file: one question, what is varied to answer it, and its figures. One file in config/studies/."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from scalestudy.claims.model import AnyClaim
from scalestudy.figures.catalogue import FigureSpec, TableSpec
from scalestudy.spec.answer import AnswerSpec
from scalestudy.spec.base import Spec
from scalestudy.spec.config import Name
from scalestudy.spec.machine_axes import HostWord, MachineAxis

Axes = dict[str, Annotated[list[Any], Field(min_length=1)] | None]


def _kind(axis: Any) -> str:
    """Tag of a member of `VaryAxis`."""
    is_machine = isinstance(axis, MachineAxis) or (isinstance(axis, dict) and "to" in axis)
    return "machine" if is_machine else "hosts" if isinstance(axis, str) else "list"


VaryAxis = Annotated[
    Annotated[list[Any], Field(min_length=1), Tag("list")]
    | Annotated[MachineAxis, Tag("machine")]
    | Annotated[HostWord, Tag("hosts")],
    Discriminator(_kind),
]
VaryAxes = dict[str, VaryAxis | None]
"""As `Axes`; the machine may set the values."""
MAX_REPEATS = 10_000
TargetAccuracy = Annotated[float, Field(gt=0, lt=1)]
Repeats = Annotated[int, Field(ge=1, le=MAX_REPEATS)]

RESERVED = ("all", "claims", "dataset", "figure", "judge", "report", "spec", "study", "summarise", "table", "train")
"""Names of the rules in workflow/rules/, which are targets of Snakemake as names of studies are."""


class ScaleSpec(Spec):
    """What one scale changes: maps are merged, lists replaced, null removes."""

    base: dict[str, Any] = {}
    """Changes to `base`; a map with another `source` or `name` replaces that of the file."""
    vary: VaryAxes = {}
    """Axes replaced or, by null, removed."""
    zip: list[Axes] | Axes | None = None
    """Replaces `zip`."""
    exclude: list[dict[str, Any]] | None = None
    """Replaces `exclude`."""
    include: list[dict[str, Any]] | None = None
    """Replaces `include`."""
    repeats: Repeats | None = None
    """Replaces `repeats`."""
    figures: list[FigureSpec] | None = None
    """Replaces `figures`."""
    tables: list[TableSpec] | None = None
    """Replaces `tables`."""
    answers: list[AnswerSpec] | None = None
    """Replaces `answers`."""
    target_accuracy: TargetAccuracy | None = None
    """Replaces `target_accuracy`."""
    cannot_show: str | None = None
    """What of the question this scale cannot answer, and why; a sentence."""


class StudySpec(Spec):
    """A study file."""

    question: str
    """What the study answers, as a question."""
    title: str | None = None
    """Its name in reports; unset: the file's name."""
    source: str = ""
    """Where the experiment comes from: document, section, figure."""
    tags: tuple[Name, ...] = ()
    """Words to select studies by."""
    base: dict[str, Any] = {}
    """The run that everything else is a variation of: keys of a run."""
    vary: VaryAxes = {}
    """Dotted key to values; all are crossed. A value may be `{value: …, label: …}`. Of `ranks`, `nodes` and `loader.workers`,
    `{to: machine}` is 1, 2, 4, … up to what the machine has, its end included; `{to: node}`, up to what one node has.
    `nodes: each` is every node of the machine by name, `nodes: pairs` every two of them; each run has `ranks_per_node`
    ranks on each, or one per device, where the study sets no `ranks`."""
    zip: list[Axes] | Axes = []
    """Dotted keys that vary together: one axis, or a list of axes."""
    exclude: list[dict[str, Any]] = []
    """Combinations left out: each a map of dotted keys to values that must all agree."""
    include: list[dict[str, Any]] = []
    """Single combinations added: each a map of dotted keys to values, on top of `base`, with `repeats` where fewer are enough.
    With `nodes: each` or `pairs`, one for each of these."""
    repeats: Repeats = 1
    """How often each configuration is measured."""
    scales: dict[Literal["mini", "node"], ScaleSpec] = {}
    """`mini` and `node`, as changes to the rest of the file, which is `paper`."""
    figures: list[FigureSpec] = []
    """What is drawn."""
    tables: list[TableSpec] = []
    """What is tabulated."""
    answers: list[AnswerSpec] = []
    """The answer to the question, one sentence or two; without any, the first figure of lines or bars is put into words."""
    claims: list[AnyClaim] = []
    """Statements of our own that runs are judged against; those of documents are in config/claims/."""
    target_accuracy: TargetAccuracy | None = None
    """Held-out accuracy (or AUROC, where there is no accuracy) whose first time is the column `time_to_accuracy_s`."""
    cannot_show: str | None = None
    """What of the question the scale `paper` cannot answer, and why; a sentence. Other scales have their own."""

    def at(self, scale: str) -> ScaleSpec:
        """Changes of one scale."""
        return next((change for name, change in self.scales.items() if name == scale), ScaleSpec())
