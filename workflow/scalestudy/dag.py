"""What the rules ask: which runs, datasets, figures and tables a path or the configuration stands for."""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from scalestudy import driver
from scalestudy.cluster.resources import Planner, Resources, of_dataset, refuse_caps
from scalestudy.errors import UserError, nearest
from scalestudy.files import canonical_json
from scalestudy.spec import layout
from scalestudy.spec.config import DATA_FOLDER, SCALES, Config, read_config, read_machine
from scalestudy.spec.study import Run, Study, read_studies

PACKAGE = Path(__file__).parent
RESERVED = ("all", "horovod", "dataset", "spec", "train", "summarise", "figure", "table", "report")
BUDGET = "SCALESTUDY_BUDGET_GPU_HOURS"
"""By this name the executor, which is made after the Snakefile was read, learns the configuration's budget."""


class Current:
    """The project of the Snakefile that this process has read, for the plan that a dry run shows."""

    project: Project | None = None
    workflow: Any = None
    """Snakemake's own, whose jobs the display counts."""
    changes: Mapping[str, Any] = {}
    """What `scalestudy plan --set` changes in every study."""
    caps: Mapping[str, Any] | None = None
    """The profile's caps, where `scalestudy plan` has taken them away from its own dry run."""


def read_project(config: Mapping[str, Any], workflow: Any) -> Project:
    """The project as a Snakefile sees it: what is wrong with it is said in sentences, and ends the command."""
    try:
        given = workflow.global_resources if Current.caps is None else Current.caps
        caps = {name: getattr(cap, "value", cap) for name, cap in given.items()}
        refuse_caps(caps)
        Current.project, Current.workflow = Project(config, caps, Current.changes), workflow
        return Current.project
    except UserError as error:
        _end(error)


def calm_driver(workflow: Any) -> None:
    """Keep a local driver from taking the time of the runs that it starts.

    With a limit on jobs per time span, which is Snakemake's default, version 9.27 starts a timer in each round of its
    scheduler that starts another round, for ever: after a hundred jobs it takes a tenth of a core, and more with each.
    One job at a time on this machine needs no limit.
    """
    if workflow.local_exec and getattr(workflow.scheduler, "job_rate_limiter", None) is not None:
        workflow.scheduler.job_rate_limiter = None


def own_folder(workflow: Any) -> None:
    """Take the lock of the working directory for a driver of this machine; one that submits jobs has it by its executor.

    Neither has Snakemake's own (`nolock` in profiles/default), which outlives a driver that was killed.
    """
    driver.conceal()
    if not workflow.local_exec:
        return
    from snakemake_executor_plugin_scalestudy.driverlock import DriverLock, Taken

    folder = Path(".scalestudy")
    folder.mkdir(exist_ok=True)
    lock = DriverLock(folder)
    try:
        lock.take()
    except Taken as taken:
        _end(UserError(str(taken)))
    atexit.register(lock.release)
    lock.keep_for_ever()
    driver.announce()
    if Current.project is not None:
        _refuse_if_overtaken(workflow, Current.project.begin)


def _refuse_if_overtaken(workflow: Any, begin: float) -> None:
    """A run that another driver finished after this one had begun to read the folder would be made again."""
    for job in workflow.dag.needrun_jobs():
        for result in (Path(str(path)) for path in job.output if job.rule.name == "train"):
            if result.exists() and result.stat().st_mtime > begin:
                what = "another driver finished this run while this one was reading the folder"
                _end(UserError(what, str(result), "give the same command again"))


def asked(question: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A question to the project about a job's wildcards; what is wrong with them is said as a sentence."""

    def answer(wildcards: Any) -> Any:
        try:
            return question(wildcards)
        except UserError as error:
            _end(error)

    return answer


def _end(error: UserError) -> NoReturn:
    """End Snakemake as any command ends that was asked wrongly. A WorkflowError would add the frames of a traceback."""
    sys.stderr.write(f"scalestudy: {error}\n")
    sys.exit(2)


Planned = tuple[int, int, Run]
"""A run, with the position of its study and its round: the order of measurement."""

LATE = 100_000
"""Rounds from this one on come after everything else, and after what has to be compiled for them."""


def _planned(position: int, study: Study, run: Run) -> Planned:
    return position, (LATE if run.id in study.late else 0) + run.spec.repeat % study.repeats, run


class Project:
    """The configuration of one Snakemake call, and the studies of any machine and scale that a path names."""

    def __init__(
        self, config: Mapping[str, Any], caps: Mapping[str, Any] | None = None, changes: Mapping[str, Any] | None = None
    ) -> None:
        self.begin = time.time()
        self.caps, self.changes = caps or {}, changes or {}
        if "site" in config:
            os.environ["SCALESTUDY_SITE"] = str(config["site"])  # commands read the site by this name
        self.config: Config = read_config("config/config.yaml", config)
        if self.config.budget_gpu_hours is not None:
            os.environ[BUDGET] = str(self.config.budget_gpu_hours)
        bulk = self.config.paths.data
        os.environ[DATA_FOLDER] = bulk or ""
        self.bulk_option = f"--bulk {shlex.quote(bulk)}" if bulk else ""
        self.report = str(layout.report_file(self.config.machine, self.config.scale))
        self._studies: dict[tuple[str, str, str], Study] = {}
        self._runs: dict[str, dict[str, Planned]] = {}
        self._planners: dict[str, Planner] = {}
        self._datasets: dict[str, Resources] = {}
        self.chosen = self._chosen()
        for study in self.chosen:
            if study.name in RESERVED:
                raise UserError(
                    f"`{study.name}` cannot be the name of a study", f"config/studies/{study.name}.yaml", "rename it"
                )

    def _chosen(self) -> list[Study]:
        config = self.config
        names = None if config.studies == "all" else config.studies
        machine = read_machine(config.machine)
        return read_studies(
            names, config.scale, machine, tags=config.tags, machine_name=config.machine, changes=self.changes
        )

    def study(self, machine: str, scale: str, name: str) -> Study:
        """The study that a path names."""
        if (machine, scale) == (self.config.machine, self.config.scale):
            for study in self.chosen:
                if study.name == name:
                    return study
        if (machine, scale, name) not in self._studies:
            found = read_studies([name], scale, read_machine(machine), machine_name=machine)[0]
            self._studies[machine, scale, name] = found
        return self._studies[machine, scale, name]

    def runs(self, machine: str) -> dict[str, Planned]:
        """All runs that any study has on a machine, at any scale."""
        if machine in self._runs:
            return self._runs[machine]
        found: dict[str, Planned] = self._runs.setdefault(machine, {})
        scales = [self.config.scale, *(scale for scale in SCALES if scale != self.config.scale)]
        for scale in scales:
            studies = (
                self.chosen
                if (machine, scale) == (self.config.machine, self.config.scale)
                else self._all(machine, scale)
            )
            for position, study in enumerate(studies):
                for run in study.runs:
                    found.setdefault(run.id, _planned(position, study, run))
        return found

    @staticmethod
    def _all(machine: str, scale: str) -> list[Study]:
        try:
            return read_studies(None, scale, read_machine(machine), machine_name=machine)
        except UserError:
            # A study that is wrong at another scale does not stop the one that was asked for.
            return []

    @functools.cached_property
    def _own(self) -> dict[str, Planned]:
        return {
            run.id: _planned(position, study, run)
            for position, study in reversed(list(enumerate(self.chosen)))
            for run in study.runs
        }

    def _find(self, machine: str, run: str) -> Planned:
        """A run by its id: among those of the configuration first, then among all that any study has."""
        if machine == self.config.machine and run in self._own:
            return self._own[run]
        known = self.runs(machine)
        if run not in known:
            raise UserError(f"no study has a run `{run}`", f"results/{machine}/runs", nearest(run, known))
        return known[run]

    def _known(self) -> Iterator[dict[str, Planned]]:
        """Runs by where to look first: those of the configuration, those of paths seen so far, those of any study."""
        yield self._own
        yield from list(self._runs.values())
        yield self.runs(self.config.machine)

    # train

    def spec_json(self, machine: str, run: str) -> str:
        """The spec of a run, as it is stored."""
        return canonical_json(self._find(machine, run)[2].spec.plain())

    def train_inputs(self, machine: str, run: str) -> dict[str, str]:
        """Nothing once the run is finished: a finished run is immutable."""
        if layout.result_file(machine, run).exists():
            return {}
        folder, planned = layout.run_folder(machine, run), self._find(machine, run)[2]
        build = {"build": f"results/{machine}/builds/horovod.json"} if planned.spec.strategy.needs_build else {}
        return {
            "spec": str(folder / "spec.json"),
            "data": str(layout.manifest_file(planned.dataset)),
            **build,
        }

    def priority(self, machine: str, run: str) -> int:
        """Study by study, and in each round by round: the first figure comes early, drift hits all configurations.

        Horovod is built at 50,000 (rules/build.smk): after all runs that need nothing built, before those that do.
        """
        position, number, _ = self._find(machine, run)
        if number >= LATE:
            return 40_000 - 100 * min(position, 90) - min(number - LATE, 99)
        return 1_000_000 - 10_000 * min(position, 90) - number

    @property
    def jobs_at_once(self) -> int | None:
        """How many measured runs the driver lets run at the same time; None for any number."""
        caps = [self.caps.get("_nodes"), self.caps.get("measure")]
        known = [cap for cap in caps if isinstance(cap, int) and 0 < cap < sys.maxsize]
        return min(known) if known else None

    def planner(self, machine: str) -> Planner:
        """What the runs on a machine ask for and are expected to take."""
        if machine not in self._planners:
            self._planners[machine] = Planner(machine, read_machine(machine))
        return self._planners[machine]

    def run(self, machine: str, run: str) -> Run:
        """A run by its id."""
        return self._find(machine, run)[2]

    def resource(self, machine: str, run: str, name: str) -> int | str | None:
        """One resource of a run's job."""
        value: int | str | None = self.planner(machine).of(self.run(machine, run))[0].plain()[name]
        return value

    def gpu_slots(self, machine: str, run: str) -> int:
        """All devices of a run, for `--resources gpu_slots=N`: a cap on what runs at the same time."""
        asked = self.planner(machine).of(self.run(machine, run))[0]
        slots, cap = asked.nodes * asked.gpus_per_node, self.caps.get("gpu_slots")
        if isinstance(cap, int) and slots > cap:
            raise UserError(f"a run needs {slots} devices, more than gpu_slots={cap}", run, "raise the cap")
        return slots

    def dataset_resource(self, dataset: str, name: str) -> int | str | None:
        """One resource of the job that prepares a dataset."""
        value: int | str | None = self.dataset_resources(dataset).plain()[name]
        return value

    def dataset_resources(self, dataset: str) -> Resources:
        """What preparing a dataset asks for."""
        if dataset not in self._datasets:
            spec = self.run_with(dataset).spec
            self._datasets[dataset] = of_dataset(spec, self.planner(self.config.machine).machine)
        return self._datasets[dataset]

    def study_of(self, machine: str, run: str) -> str:
        """The study for whose sake a run is made; of several that share it, the first."""
        if machine == self.config.machine and run in self._own:
            return self.chosen[self._own[run][0]].name
        return "other"

    def dataset_json(self, dataset: str) -> str:
        """The spec of a dataset."""
        return canonical_json(self.run_with(dataset).spec.data.plain())

    def run_with(self, dataset: str) -> Run:
        """A run that uses a dataset."""
        for known in self._known():
            for _, _, run in known.values():
                if run.dataset == dataset:
                    return run
        raise UserError(f"no study uses a dataset `{dataset}`", "results/data")

    # analyse and publish

    def results(self, machine: str, scale: str, study: str) -> list[str]:
        """The results of all runs of a study."""
        return [str(layout.result_file(machine, run.id)) for run in self.study(machine, scale, study).runs]

    def shown(self, machine: str, scale: str, name: str) -> str:
        """What of a study changes its summary without changing its runs: order, labels, titles."""
        study = self.study(machine, scale, name)
        return canonical_json(
            [study.title, study.question, study.source, study.varied, study.labels, [run.id for run in study.runs]]
        )

    def drawing(self, machine: str, scale: str, study: str, name: str) -> str:
        """How a figure or table is declared."""
        found = self.study(machine, scale, study)
        known = {figure.file_name: figure.plain() for figure in found.figures} | {
            f"table {t.name}": t.plain() for t in found.tables
        }
        if name not in known:
            names = [key for key in known if key.startswith("table ") == name.startswith("table ")]
            raise UserError(
                f"study `{study}` has no {name if name.startswith('table') else f'figure {name}'}",
                f"config/studies/{study}.yaml",
                nearest(name, names),
            )
        return canonical_json(known[name])

    def reference(self, machine: str, scale: str, study: str, figure: str) -> list[str]:
        """The published numbers that a figure shows."""
        for found in self.study(machine, scale, study).figures:
            if found.file_name == figure and found.reference:
                return [f"config/reference/{found.reference}.csv"]
        return []

    def study_targets(self, study: Study) -> list[str]:
        """Everything of one study. Results are named, or a deleted one would not be missed."""
        machine, scale = self.config.machine, study.scale
        return [
            *self.results(machine, scale, study.name),
            str(layout.study_folder(machine, scale, study.name) / "runs.parquet"),
            *(str(layout.figure_file(machine, scale, study.name, figure.file_name)) for figure in study.figures),
            *(str(layout.table_file(machine, scale, study.name, table.name)) for table in study.tables),
        ]

    def summary_command(self, targets: Iterable[str]) -> str:
        """The command that gives an account of the studies asked for; of single files none is due."""
        asked_for = set(targets) or {"all"}
        names = [study.name for study in self.chosen if {"all", study.name} & asked_for]
        if not names:
            return "true"
        config = self.config
        return f"scalestudy summary --machine {config.machine} --scale {config.scale} --studies {','.join(names)} --since {self.begin}"

    def report_inputs(self, machine: str, scale: str) -> list[str]:
        """Everything that the report of a machine and scale shows."""
        if (machine, scale) != (self.config.machine, self.config.scale):
            raise UserError(
                f"the report of machine {machine} at scale {scale} needs --config machine={machine} scale={scale}",
                f"results/{machine}",
                f"snakemake {layout.report_file(machine, scale)} --cores 1 --config machine={machine} scale={scale}",
            )
        return [target for study in self.chosen for target in self.study_targets(study)]


def code(*folders: str) -> list[str]:
    """The source files of parts of the package: what is drawn by other code is drawn again."""
    files = [file for folder in folders for file in (PACKAGE / folder).glob("*") if file.suffix in (".py", ".j2")]
    return sorted(str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file) for file in files)
