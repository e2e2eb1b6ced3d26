"""The project: the configuration of one Snakemake call, its studies and runs, and the resources of their jobs."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import Planner, Resources
from scalestudy.errors import UserError, nearest, raise_all
from scalestudy.files import read_json
from scalestudy.site_fault import CHANGES, SITE
from scalestudy.spec import layout
from scalestudy.spec.base import SCALES, parse
from scalestudy.spec.config import BUDGET, FOR_EXECUTOR, Site, changes_of, read_config, read_machine, read_site
from scalestudy.spec.ids import configuration_id, dataset_id, run_id
from scalestudy.spec.read_study import find_studies, read_studies
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Run, Study
from scalestudy.spec.study_file import is_study_name

OTHER = "other"


class IndexedRun(NamedTuple):
    """A run, and what its job has of it."""

    run: Run
    study: str
    """The one that it is made for: of several that share it, a target, or the first; OTHER: none that is configured."""
    priority: int
    """Rank among the jobs that are ready."""


def _indexed(position: int, study: Study, name: str) -> Iterator[IndexedRun]:
    """The runs of a study, which follow each other round by round, and within a round in the order that the seed draws.

    Studies follow each other by `position`. So the first figure comes early, drift hits all configurations, and the
    after-effects of a run (a warm cache, a hot processor) do not always meet the same next one.
    """
    places = {run: place for place, run in enumerate((*study.order, *(run.id for run in study.explained)))}
    for run in (*study.runs, *study.explained):
        yield IndexedRun(run, name, 1_000_000 - 10_000 * min(position, 90) - min(places[run.id], 9_999))


def _planned(folder: Path) -> Run | None:
    """The run whose spec.json lies in a folder of that run; None where there is none, or that of another run."""
    file = folder / "spec.json"
    spec, _ = parse(RunSpec, read_json(file)) if file.is_file() else (None, [])
    if spec is None or run_id(spec) != folder.name:
        return None
    first = spec.model_copy(update={"seed": spec.seed - spec.repeat, "repeat": 0})
    return Run(folder.name, spec, configuration_id(first), dataset_id(spec.data))


class Project:
    """The configuration, the configured studies, and those of any machine and scale that a path names."""

    def __init__(
        self,
        config: Mapping[str, Any],
        caps: Mapping[str, Any] | None = None,
        targets: Callable[[], Collection[str]] = lambda: (),
        *,
        is_job: bool = False,
    ) -> None:
        """`caps` are Snakemake's caps on resources, `targets` those of its call, once they are known: a run that several
        studies share is made for the first of these. UserError where no configured study can be expanded, unless a
        submitted job reads the project: its run is planned already.
        """
        self.caps, self.targets = caps or {}, targets
        self.site: str | None = config.get("site")
        site = read_site(self.site) if self.site else Site()
        self.prepares_data = site.prepare == "driver"
        """Whether the driver prepares data itself, in place of jobs."""
        self.has_scheduler = site.scheduler is not None
        """Whether jobs are submitted; else they are run here, one after the other."""
        self.config = read_config("config/config.yaml", config)
        self.folder, self.scale = self.config.folder, self.config.scale
        given = config.get("set") or ()
        self.set: list[str] = [given] if isinstance(given, str) else list(given)
        """Settings that hold for every study, as `--config set=…` gives them."""
        self.changes = changes_of(given) or None
        self.machine = functools.cache(read_machine)
        """The machine that a path names."""
        self.planner = functools.cache(lambda machine: Planner(machine, self.machine(machine)))
        """Requests and estimates of the runs on a machine."""
        self._runs: dict[str, dict[str, IndexedRun]] = {}
        self.found = find_studies(
            None if self.config.studies == "all" else self.config.studies,
            self.scale,
            self.machine(self.folder),
            machine_name=self.folder,
            changes=self.changes,
        )
        self.chosen = self.found.studies
        """The configured studies that can be expanded."""
        self._studies: dict[tuple[str, str, str], Study] = {
            (self.folder, self.scale, study.name): study for study in self.chosen
        }
        if not self.chosen and not is_job:
            raise_all(self.found.errors())
            raise UserError(f"no configured study has scale `{self.scale}`", "config/studies", "choose another scale")

    # Studies and runs

    @property
    def names(self) -> list[str]:
        """The names of all configured studies, including those with errors that can be targets."""
        wrong = (name for name in self.found.wrong if is_study_name(name))
        return sorted({*(study.name for study in self.chosen), *wrong})

    def is_configured(self, machine: str, scale: str) -> bool:
        """Whether the configuration is for this machine and scale."""
        return (machine, scale) == (self.folder, self.scale)

    def study(self, machine: str, scale: str, name: str) -> Study:
        """The study that a path names."""
        if (machine, scale, name) not in self._studies:
            study = read_studies([name], scale, self.machine(machine), machine_name=machine, changes=self.changes)[0]
            self._studies[machine, scale, name] = study
        return self._studies[machine, scale, name]

    def run(self, machine: str, run: str) -> Run:
        """A run by its id."""
        return self.indexed(machine, run).run

    def indexed(self, machine: str, run: str) -> IndexedRun:
        """A run by its id: of the configuration, else of any study, else as it was planned before the studies changed."""
        if machine == self.folder and run in self._configured:
            return self._configured[run]
        all_runs = self._all_runs(machine)
        if run not in all_runs and (planned := _planned(layout.run_folder(machine, run))) is not None:
            all_runs[run] = IndexedRun(planned, OTHER, 1_000_000)
        if run not in all_runs:
            raise UserError(f"no study has a run `{run}`", f"results/{machine}/runs", nearest(run, all_runs))
        return all_runs[run]

    def run_with(self, dataset: str) -> Run:
        """A run that uses a dataset: of the configuration, else of paths seen so far, else of any study."""

        def among(*run_indexes: Mapping[str, IndexedRun]) -> Run | None:
            return next((one.run for runs in run_indexes for one in runs.values() if one.run.dataset == dataset), None)

        run = among(self._configured, *self._runs.values()) or among(self._all_runs(self.folder))
        if run is None:
            raise UserError(f"no study uses a dataset `{dataset}`", "results/data")
        return run

    @functools.cached_property
    def _configured(self) -> dict[str, IndexedRun]:
        targets, indexed_runs = self.targets(), dict[str, IndexedRun]()
        for position, study in sorted(enumerate(self.chosen), key=lambda item: item[1].name not in targets):
            for indexed in _indexed(position, study, study.name):
                indexed_runs.setdefault(indexed.run.id, indexed)
        return indexed_runs

    def _all_runs(self, machine: str) -> dict[str, IndexedRun]:
        """All runs that any study has on a machine, at any scale."""
        if machine not in self._runs:
            indexed_runs = self._runs.setdefault(machine, {})
            for scale in [self.scale, *(scale for scale in SCALES if scale != self.scale)]:
                for position, study in enumerate(self.all_studies(machine, scale)):
                    for indexed in _indexed(position, study, OTHER):
                        indexed_runs.setdefault(indexed.run.id, indexed)
        return self._runs[machine]

    def all_studies(self, machine: str, scale: str, *, changed: bool = True) -> list[Study]:
        """Every study of a machine and scale, configured or not; with the changes of `set`, or as its file has it."""
        changes = self.changes if changed else None
        if self.is_configured(machine, scale) and self.config.studies == "all" and changes == self.changes:
            return self.chosen
        return find_studies(None, scale, self.machine(machine), machine_name=machine, changes=changes).studies

    # Jobs

    def of_run(self, machine: str, run: str) -> Resources:
        """Request of a run's job."""
        return self.planner(machine).of(self.run(machine, run))[0]

    def of_dataset(self, dataset: str) -> tuple[Resources, TimeEstimate]:
        """Request and estimate of a dataset's preparation."""
        return self.planner(self.folder).of_dataset(dataset, self.run_with(dataset).spec)

    @property
    def jobs_at_once(self) -> int | None:
        """How many measured runs the driver lets run at the same time; None for any number."""
        caps = [self.caps.get("_nodes"), self.caps.get("measure")]
        return min((cap for cap in caps if isinstance(cap, int) and 0 < cap < sys.maxsize), default=None)

    # The call

    @property
    def bulk_option(self) -> str:
        """Where `scalestudy prepare` puts the bulk of data; nothing where the configuration does not say."""
        bulk = self.config.paths.data
        return f"--bulk {shlex.quote(bulk)}" if bulk else ""

    def environment(self) -> dict[str, str]:
        """Environment in which rules' commands and the executor read the configuration; the names are in spec/config.py."""
        path, scripts = os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)
        if scripts not in path.split(os.pathsep):  # Snakemake was called by its path, in an environment not activated.
            path = f"{scripts}{os.pathsep}{path}"
        variables = {"PATH": path, **FOR_EXECUTOR}
        if self.site is not None:
            variables[SITE] = str(self.site)
        if self.set:
            variables[CHANGES] = "\n".join(self.set)
        if self.config.budget_gpu_hours is not None:
            variables[BUDGET] = str(self.config.budget_gpu_hours)
        return variables

    def requested(self, dag: Any) -> list[Study]:
        """The studies that are requested as a whole: a target without files of its own has their tables among its inputs."""
        inputs = {str(file) for job in dag.targetjobs if not job.output for file in job.input}
        return [
            study
            for study in self.chosen
            if str(layout.study_folder(self.folder, self.scale, study.name) / "runs.parquet") in inputs
        ]

    def summary_command(self, dag: Any) -> str:
        """The command that reports on the studies that are requested as a whole; nothing to report on single files."""
        names = ",".join(study.name for study in self.requested(dag))
        where = f"--machine {self.folder} --scale {self.scale}"
        return f"scalestudy summary {where} --studies {names}" if names else "true"
