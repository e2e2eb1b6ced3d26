"""Study: one question at one scale, expanded into its runs; what is made after the runs reads it from study.json."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scalestudy.claims.model import AnyClaim
from scalestudy.errors import UserError, nearest
from scalestudy.figures.catalogue import AnswerSpec, FigureSpec, TableSpec
from scalestudy.files import sha256_text
from scalestudy.spec.columns import agrees, columns_of
from scalestudy.spec.layout import STUDIES
from scalestudy.spec.run import RunSpec

Part = TypeVar("Part", FigureSpec, TableSpec)
MACHINE_STUDIES = ("second_rank", "noise", "loader_workers", "small_files")
"""Studies of the machine itself: what `make run` runs without an accelerator, and what all answers begin with."""


@dataclass(frozen=True)
class Run:
    """One run of a study."""

    id: str
    spec: RunSpec
    configuration: str
    dataset: str

    @functools.cached_property
    def columns(self) -> dict[str, Any]:
        """Every key of the run, dotted, with its value."""
        return columns_of(self.spec)


@dataclass(frozen=True)
class Study:
    """A study at one scale, expanded: its runs in the order of its file, round by round."""

    name: str
    title: str
    question: str
    source: str
    scale: str
    repeats: int
    runs: tuple[Run, ...]
    varied: tuple[str, ...]
    labels: dict[str, dict[str, str]]
    figures: tuple[FigureSpec, ...]
    tables: tuple[TableSpec, ...]
    claims: tuple[AnyClaim, ...] = ()
    answers: tuple[AnswerSpec, ...] = ()
    target_accuracy: float | None = None
    explained: tuple[Run, ...] = ()
    """Runs that explain configurations of a program; what is made from `runs` does not use them."""
    cannot_show: str = ""
    """What of the question this scale cannot answer, and why."""
    left_out: tuple[str, ...] = ()
    """What the study names and this machine does not have: how many runs, and why; a sentence each."""

    def figure(self, name: str) -> FigureSpec:
        """The figure of that name. Raises UserError with the nearest one."""
        return self._named("figure", {figure.file_name: figure for figure in self.figures}, name)

    def table(self, name: str) -> TableSpec:
        """The table of that name. Raises UserError with the nearest one."""
        return self._named("table", {table.name: table for table in self.tables}, name)

    def _named(self, kind: str, parts: Mapping[str, Part], name: str) -> Part:
        if name not in parts:
            where = str(STUDIES / f"{self.name}.yaml")
            raise UserError(f"study `{self.name}` has no {kind} `{name}`", where, nearest(name, parts))
        return parts[name]

    def configurations(self, where: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The configurations that agree with `where`, each with the columns of its first run."""
        firsts = (run for run in self.runs if run.spec.repeat == 0)
        return {run.configuration: run.columns for run in firsts if agrees(run.columns, where)}

    @functools.cached_property
    def order(self) -> tuple[str, ...]:
        """Ids of the runs in the order of measurement: round by round, and within each in an order that the seed draws.

        The order is drawn by hashing, so that a configuration that is added leaves the order of the others as it was.
        """

        def drawn(run: Run) -> tuple[int, str]:
            repeat = run.spec.repeat
            return repeat, sha256_text(f"{run.spec.seed - repeat}:{repeat}:{run.configuration}")

        return tuple(run.id for run in sorted(self.runs, key=drawn))


MAX_SENTENCES = 3
"""Sentences about several studies that are shown; with more of them, only the studies' names."""


def left_out_of(studies: Iterable[Study]) -> list[str]:
    """Sentences about the infeasible runs of studies; of many, one line with the studies' names."""
    left_out = {study.name: study.left_out for study in studies if study.left_out}
    if len(left_out) > 1 and sum(map(len, left_out.values())) > MAX_SENTENCES:
        names = ", ".join(left_out)
        return [f"parts of {names}: there are no runs for them here; `scalestudy plan STUDY` says which, and why"]
    return [f"{name}: {sentence}" for name, sentences in left_out.items() for sentence in sentences]
