"""The runs of all studies by their ids, and the studies by their names."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from scalestudy.errors import UserError, nearest
from scalestudy.spec.config import NAME, SCALES, Config, read_machine
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies, read_studies
from scalestudy.spec.study import Run, Study
from scalestudy.spec.study_file import RESERVED


class IndexedRun(NamedTuple):
    """A run, with the position of its study, and its place in the order in which the study's runs are measured."""

    study: int
    place: int
    run: Run


def _planned(position: int, study: Study) -> Iterator[IndexedRun]:
    places = {run: place for place, run in enumerate(study.order)}
    for run in study.runs:
        yield IndexedRun(position, places[run.id], run)


class RunIndex:
    """The configured studies, and those of any machine and scale that a path names."""

    def __init__(self, config: Config, changes: dict[str, Any] | None = None) -> None:
        self.config, self.changes = config, changes or None
        names = None if config.studies == "all" else config.studies
        self._machines: dict[str, Machine] = {}
        found = find_studies(
            names,
            config.scale,
            self.machine(config.folder),
            tags=config.tags,
            machine_name=config.folder,
            changes=changes,
        )
        self.chosen: list[Study] = found.studies
        """The configured studies that can be expanded."""
        self.wrong: dict[str, UserError] = found.wrong
        """What is wrong with the others, by name."""
        self.skipped: list[UserError] = found.skipped
        """Files whose names no study can have."""
        self._found = found
        self._studies: dict[tuple[str, str, str], Study] = {}
        self._runs: dict[str, dict[str, IndexedRun]] = {}
        if not self.chosen:
            self.raise_errors()
            raise UserError(f"no configured study has scale `{config.scale}`", "config/studies", "choose another scale")

    def raise_errors(self) -> None:
        """Raise UserError with all that is wrong with configured studies."""
        self._found.raise_errors()

    @property
    def wrong_names(self) -> list[str]:
        """Names of studies that are wrong and can be targets nevertheless."""
        return [name for name in self.wrong if re.fullmatch(NAME, name) and name not in RESERVED]

    def is_configured(self, machine: str, scale: str) -> bool:
        """Whether the configuration is for this machine and scale."""
        return (machine, scale) == (self.config.folder, self.config.scale)

    def machine(self, name: str) -> Machine:
        """The machine that a path names, read once."""
        if name not in self._machines:
            self._machines[name] = read_machine(name)
        return self._machines[name]

    def study(self, machine: str, scale: str, name: str) -> Study:
        """The study that a path names."""
        if self.is_configured(machine, scale):
            for study in self.chosen:
                if study.name == name:
                    return study
        if (machine, scale, name) not in self._studies:
            found = read_studies([name], scale, self.machine(machine), machine_name=machine, changes=self.changes)[0]
            self._studies[machine, scale, name] = found
        return self._studies[machine, scale, name]

    def run(self, machine: str, run: str) -> Run:
        """A run by its id."""
        return self.planned(machine, run).run

    def planned(self, machine: str, run: str) -> IndexedRun:
        """A run by its id: among those of the configuration first, then among all that any study has."""
        if machine == self.config.folder and run in self._configured:
            return self._configured[run]
        known = self._all_runs(machine)
        if run not in known:
            raise UserError(f"no study has a run `{run}`", f"results/{machine}/runs", nearest(run, known))
        return known[run]

    def run_with(self, dataset: str) -> Run:
        """A run that uses a dataset."""
        for known in self._most_likely_first():
            for planned in known.values():
                if planned.run.dataset == dataset:
                    return planned.run
        raise UserError(f"no study uses a dataset `{dataset}`", "results/data")

    def study_name(self, machine: str, run: str) -> str:
        """The study that a run is made for: of several that share it, the first; `other` for one not configured."""
        if machine == self.config.folder and run in self._configured:
            return self.chosen[self._configured[run].study].name
        return "other"

    @functools.cached_property
    def _configured(self) -> dict[str, IndexedRun]:
        return {
            planned.run.id: planned
            for position, study in reversed(list(enumerate(self.chosen)))
            for planned in _planned(position, study)
        }

    def _all_runs(self, machine: str) -> dict[str, IndexedRun]:
        """All runs that any study has on a machine, at any scale."""
        if machine not in self._runs:
            found = self._runs.setdefault(machine, {})
            for scale in [self.config.scale, *(scale for scale in SCALES if scale != self.config.scale)]:
                for position, study in enumerate(self.all_studies(machine, scale)):
                    for planned in _planned(position, study):
                        found.setdefault(planned.run.id, planned)
        return self._runs[machine]

    def all_studies(self, machine: str, scale: str, *, changed: bool = True) -> list[Study]:
        """Every study of a machine and scale, configured or not; with the changes of `set`, or as its file has it."""
        changes = self.changes if changed else None
        is_chosen = self.is_configured(machine, scale) and self.config.studies == "all" and not self.config.tags
        if is_chosen and changes == self.changes:
            return self.chosen
        return find_studies(None, scale, self.machine(machine), machine_name=machine, changes=changes).studies

    def _most_likely_first(self) -> Iterator[dict[str, IndexedRun]]:
        """Runs of the configuration, then of paths seen so far, then of any study."""
        yield self._configured
        yield from list(self._runs.values())
        yield self._all_runs(self.config.folder)
