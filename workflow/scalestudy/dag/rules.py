"""What a rule writes in the place of a value: functions of a job's wildcards, as Snakemake calls them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from scalestudy.dag.project import Project
from scalestudy.errors import UserError, of_system
from scalestudy.spec.layout import STATE_FILE, run_folder
from scalestudy.spec.study import Study

PACKAGE = Path(__file__).parents[1]

Answer = TypeVar("Answer")


def end(error: UserError | OSError) -> NoReturn:
    """End Snakemake with a message and status 2. A WorkflowError would add the frames of a traceback."""
    sys.stderr.write(f"scalestudy: {of_system(error) if isinstance(error, OSError) else error}\n")
    sys.exit(2)


def _answers(question: Callable[[Rules, Any], Answer]) -> Callable[[Rules, Any], Answer]:
    """A method whose errors end Snakemake with a message."""

    @functools.wraps(question)
    def answer(self: Rules, wildcards: Any) -> Answer:
        try:
            return question(self, wildcards)
        except (UserError, OSError) as error:
            end(error)

    return answer


class Rules:
    """What the rules in workflow/rules/ ask about their wildcards."""

    def __init__(self, project: Project, *, warn: bool = True) -> None:
        """With `warn`, studies that are wrong and not among the targets are named once."""
        self.project, self.warn = project, warn

    # Targets

    @_answers
    def everything(self, w: Any) -> list[str]:
        """All that is configured. A study that is wrong is an error here."""
        config = self.project.config
        return [self.project.report, *self.project.targets.of_report(config.folder, config.scale)]

    def study(self, name: str) -> Callable[[Any], list[str]]:
        """Everything of one study; its errors, where it is wrong."""

        def targets(w: Any) -> list[str]:
            runs = self.project.runs
            if name in runs.wrong:
                end(runs.wrong[name])
            self._warn()
            return self.project.targets.of_study(runs.study(runs.config.folder, runs.config.scale, name))

        return targets

    # Data and runs

    @_answers
    def dataset_json(self, w: Any) -> str:
        """The spec of a dataset."""
        return self.project.targets.dataset_json(w.dataset)

    @_answers
    def spec_json(self, w: Any) -> str:
        """The spec of a run."""
        return self.project.targets.spec_json(w.machine, w.run)

    @_answers
    def train_inputs(self, w: Any) -> dict[str, str]:
        """Spec and data of a run; nothing once it is finished."""
        self._warn()
        return self.project.targets.train_inputs(w.machine, w.run)

    @_answers
    def priority(self, w: Any) -> int:
        """The order of measurement."""
        return self.project.resources.priority(w.machine, w.run)

    @_answers
    def gpu_slots(self, w: Any) -> int:
        """All devices of a run."""
        return self.project.resources.gpu_slots(w.machine, w.run)

    @_answers
    def study_name(self, w: Any) -> str:
        """The study that a run is made for."""
        return self.project.runs.study_name(w.machine, w.run)

    @_answers
    def chain_state(self, w: Any) -> str:
        """The file in which a run says what it has saved: from there the executor continues it in another job."""
        return str(run_folder(w.machine, w.run) / STATE_FILE)

    def run_resource(self, name: str) -> Callable[[Any], Any]:
        """One resource of a run's job."""

        @_answers
        def resource(self: Rules, w: Any) -> Any:
            return self.project.resources.of_run(w.machine, w.run).plain()[name]

        return functools.partial(resource, self)

    def dataset_resource(self, name: str) -> Callable[[Any], Any]:
        """One resource of the job that prepares a dataset."""

        @_answers
        def resource(self: Rules, w: Any) -> Any:
            return self.project.resources.of_dataset(w.dataset)[0].plain()[name]

        return functools.partial(resource, self)

    # Results

    @_answers
    def results(self, w: Any) -> list[str]:
        """The results of all runs of a study."""
        self._warn()
        return self.project.targets.results(w.machine, w.scale, w.study)

    @_answers
    def shown(self, w: Any) -> str:
        """Order, labels and titles of a study."""
        return self.project.targets.shown(w.machine, w.scale, w.study)

    @_answers
    def measured(self, w: Any) -> str:
        """What the results of a study say."""
        return self.project.targets.measured(w.machine, w.scale, w.study)

    @_answers
    def published_in_claims(self, w: Any) -> str:
        """What the published numbers say that a study's claims are about."""
        return self.project.targets.published_in_claims(w.machine, w.scale, w.study)

    @_answers
    def published_in_figure(self, w: Any) -> str:
        """What the published numbers say that a figure shows."""
        return self.project.targets.published_in_figure(w.machine, w.scale, w.study, w.figure)

    @_answers
    def figure(self, w: Any) -> str:
        """How a figure is declared."""
        return self.project.targets.figure(w.machine, w.scale, w.study, w.figure)

    @_answers
    def table(self, w: Any) -> str:
        """How a table is declared."""
        return self.project.targets.table(w.machine, w.scale, w.study, w.table)

    @_answers
    def claims(self, w: Any) -> str:
        """How a study's claims are declared."""
        return self.project.targets.claims(w.machine, w.scale, w.study)

    @_answers
    def claim_references(self, w: Any) -> list[str]:
        """The published numbers that a study's claims are about."""
        return self.project.targets.claim_references(w.machine, w.scale, w.study)

    @_answers
    def all_claims(self, w: Any) -> list[str]:
        """The verdicts of all configured studies. A study that is wrong is an error here."""
        return self.project.targets.all_claims()

    @_answers
    def reference(self, w: Any) -> list[str]:
        """The published numbers that a figure shows."""
        return self.project.targets.reference(w.machine, w.scale, w.study, w.figure)

    @_answers
    def question(self, w: Any) -> str:
        """What a study asks."""
        return self._study(w).question

    @_answers
    def study_title(self, w: Any) -> str:
        """The name of a study in reports."""
        return self._study(w).title

    @_answers
    def figure_labels(self, w: Any) -> dict[str, str]:
        """What Snakemake's report lists a figure by."""
        titles = {figure.file_name: figure.title for figure in self._study(w).figures}
        return {"figure": titles[w.figure] or w.figure}

    @_answers
    def table_labels(self, w: Any) -> dict[str, str]:
        """What Snakemake's report lists a table by."""
        titles = {table.name: table.title for table in self._study(w).tables}
        return {"table": titles[w.table] or w.table}

    def _study(self, w: Any) -> Study:
        return self.project.runs.study(w.machine, w.scale, w.study)

    @_answers
    def report_inputs(self, w: Any) -> list[str]:
        """Everything that the report shows."""
        return self.project.targets.of_report(w.machine, w.scale)

    def _warn(self) -> None:
        """Name, once, the studies that are wrong and that nothing requested needs."""
        if self.warn:
            self.warn = False
            for error in (*self.project.runs.skipped, *self.project.runs.wrong.values()):
                sys.stderr.write(f"scalestudy: warning: a study is left out: {error}\n")


def code(*folders: str) -> list[str]:
    """The source files of parts of the package: what is drawn by other code is drawn again."""
    files = [file for folder in folders for file in (PACKAGE / folder).rglob("*") if file.suffix in (".py", ".j2")]
    return sorted(str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file) for file in files)
