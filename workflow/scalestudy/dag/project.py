"""The project: the configuration of one Snakemake call, its studies and runs, and the resources of their jobs."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import Planner, Resources
from scalestudy.errors import UserError, nearest
from scalestudy.site_fault import CHANGES, SITE
from scalestudy.spec import layout
from scalestudy.spec.config import (
    BUDGET,
    DATA_FOLDER,
    FOR_EXECUTOR,
    NAME,
    SCALES,
    Config,
    Site,
    changes_of,
    checked,
    read_config,
    read_machine,
)
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies, read_studies
from scalestudy.spec.study import Run, Study
from scalestudy.spec.study_file import RESERVED
from scalestudy.spec.yamlfile import read_yaml


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


class JobResources:
    """Resources of runs and datasets, each worked out once; `caps` are those of Snakemake's `--resources`."""

    def __init__(self, runs: RunIndex, caps: Mapping[str, Any]) -> None:
        self.runs, self.caps = runs, caps
        self._planners: dict[str, Planner] = {}

    def planner(self, machine: str) -> Planner:
        """Requests and estimates of the runs on a machine."""
        if machine not in self._planners:
            self._planners[machine] = Planner(machine, read_machine(machine))
        return self._planners[machine]

    def of_run(self, machine: str, run: str) -> Resources:
        """Request of a run's job."""
        return self.planner(machine).of(self.runs.run(machine, run))[0]

    def of_dataset(self, dataset: str) -> tuple[Resources, TimeEstimate]:
        """Request and estimate of a dataset's preparation."""
        return self.planner(self.runs.config.folder).of_dataset(dataset, self.runs.run_with(dataset).spec)

    def gpu_slots(self, machine: str, run: str) -> int:
        """All devices of a run, for `--resources gpu_slots=N`: a cap on concurrent runs."""
        found = self.of_run(machine, run)
        slots, cap = found.gpus_held, self.caps.get("gpu_slots")
        if isinstance(cap, int) and slots > cap:
            raise UserError(f"a run needs {slots} devices, more than gpu_slots={cap}", run, "raise the cap")
        return slots

    def priority(self, machine: str, run: str) -> int:
        """Study by study, in each round by round, and within a round in the order that the seed draws.

        So the first figure comes early, drift hits all configurations, and the after-effects of a run (a warm cache, a hot
        processor) does not always meet the same next one.
        """
        planned = self.runs.planned(machine, run)
        return 1_000_000 - 10_000 * min(planned.study, 90) - min(planned.place, 9_999)

    @property
    def jobs_at_once(self) -> int | None:
        """How many measured runs the driver lets run at the same time; None for any number."""
        caps = [self.caps.get("_nodes"), self.caps.get("measure")]
        known = [cap for cap in caps if isinstance(cap, int) and 0 < cap < sys.maxsize]
        return min(known) if known else None


class Project:
    """The configuration, and the studies of any machine and scale that a path names."""

    def __init__(self, config: Mapping[str, Any], caps: Mapping[str, Any] | None = None) -> None:
        """`caps` are Snakemake's caps on resources."""
        self.begin = time.time()
        self.site = config.get("site")
        site = Path(self.site) if self.site is not None else None
        there = site is not None and site.is_file()
        self.prepares_data = there and checked(Site, read_yaml(str(site))).prepare == "driver"
        """Whether the driver prepares data itself, in place of jobs."""
        self.config: Config = read_config("config/config.yaml", config)
        changes = config.get("set") or ()
        self.changes: list[str] = [changes] if isinstance(changes, str) else list(changes)
        """Settings that hold for every study, as `--config set=…` gives them."""
        self.runs = RunIndex(self.config, changes_of(changes))
        self.resources = JobResources(self.runs, caps or {})

    @property
    def chosen(self) -> list[Study]:
        """The configured studies that can be expanded."""
        return self.runs.chosen

    @property
    def names(self) -> list[str]:
        """The names of all configured studies, including those with errors that can be targets."""
        return sorted({*(study.name for study in self.chosen), *self.runs.wrong_names})

    @property
    def report(self) -> str:
        """The report of the configured machine and scale."""
        return str(layout.report_file(self.config.folder, self.config.scale))

    @property
    def bulk_option(self) -> str:
        """Where `scalestudy prepare` puts the bulk of data; nothing where the configuration does not say."""
        bulk = self.config.paths.data
        return f"--bulk {shlex.quote(bulk)}" if bulk else ""

    def environment(self) -> dict[str, str]:
        """Environment in which rules' commands and the executor read the configuration; the names are in spec/config.py."""
        path = os.environ.get("PATH", os.defpath)
        scripts = str(Path(sys.executable).parent)
        if scripts not in path.split(os.pathsep):  # Snakemake was called by its path, in an environment not activated.
            path = f"{scripts}{os.pathsep}{path}"
        found = {DATA_FOLDER: self.config.paths.data or "", "PATH": path, **FOR_EXECUTOR}
        if self.site is not None:
            found[SITE] = str(self.site)
        if self.changes:
            found[CHANGES] = "\n".join(self.changes)
        if self.config.budget_gpu_hours is not None:
            found[BUDGET] = str(self.config.budget_gpu_hours)
        return found

    def requested(self, dag: Any) -> list[Study]:
        """The studies that are requested as a whole: a target without files of its own has their tables among its inputs."""
        inputs = {str(file) for job in dag.targetjobs if not job.output for file in job.input}
        where = self.config.folder, self.config.scale
        return [each for each in self.chosen if str(layout.study_folder(*where, each.name) / "runs.parquet") in inputs]

    def summary_command(self, dag: Any) -> str:
        """The command that reports on the studies that are requested as a whole; nothing to report on single files."""
        names = [study.name for study in self.requested(dag)]
        if not names:
            return "true"
        config = self.config
        where = f"--machine {config.folder} --scale {config.scale}"
        return f"scalestudy summary {where} --studies {','.join(names)} --since {self.begin}"
