"""Runs of a study that its machine cannot make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from scalestudy.errors import Problem, UserError
from scalestudy.spec.machine import geometry, machine_problems
from scalestudy.spec.machine_axes import MachineCapacity
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Study

MAX_SENTENCES = 3
"""Sentences about several studies that are shown; with more of them, only the studies' names."""


def capacity_problems(run: RunSpec, capacity: MachineCapacity, limits_workers: bool) -> Iterator[Problem]:
    """Parts of a run that exceed the machine.

    Workers count only where the machine chose their number: a study may test more workers than cores.
    """
    yield from machine_problems(run, capacity.machine, capacity.name)
    on_node = geometry(run, capacity.machine, capacity.devices)[1]
    if limits_workers and run.loader.workers * on_node > capacity.cores:
        each = "" if on_node == 1 else f" for each of {on_node} ranks on a node"
        cores = f"the {capacity.cores} cores of machine `{capacity.name}`"
        what = f"{run.loader.workers} workers{each} are more than {cores}"
        yield Problem(("loader", "workers"), what, "vary smaller numbers, or exclude this combination")


@dataclass
class InfeasibleRuns:
    """Runs that are left out, by reason, and the errors that they are if none remains."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: list[UserError] = field(default_factory=list)

    def add(self, repeats: int, problems: Sequence[Problem], errors: Iterable[UserError]) -> None:
        """Leave out one configuration."""
        self.counts[problems[0].what] += repeats
        self.errors += errors

    @property
    def sentences(self) -> tuple[str, ...]:
        """One per reason."""
        return tuple(f"{count} {'run' if count == 1 else 'runs'}: {what}" for what, count in self.counts.items())


def left_out_of(studies: Iterable[Study]) -> list[str]:
    """Sentences about the infeasible runs of studies; of many, one line with the studies' names."""
    left_out = {study.name: study.left_out for study in studies if study.left_out}
    if len(left_out) > 1 and sum(map(len, left_out.values())) > MAX_SENTENCES:
        names = ", ".join(left_out)
        return [f"parts of {names}: they need more than the machine has; `scalestudy plan STUDY` says which"]
    return [f"{name}: {sentence}" for name, sentences in left_out.items() for sentence in sentences]
