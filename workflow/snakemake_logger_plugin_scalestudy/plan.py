"""What is to be done and what it is expected to take, from the project that the Snakefile has read.

Imports of `scalestudy` stand in functions: Snakemake makes the display before it reads the Snakefile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from snakemake_logger_plugin_scalestudy.forecast import PRIORS, Expected
from snakemake_logger_plugin_scalestudy.progress import Task

MOST_SHARE = 0.005
"""Share of the driver's time that may go into asking the plan again."""


class Planned:
    """The jobs of the workflow as tasks, and what is expected of them as runs finish."""

    def __init__(self) -> None:
        self.keys: dict[str, list[str]] = {}
        self.asked_at, self.took_s = 0.0, 0.0
        self.project: Any = None
        """What the Snakefile of this project has read; None in other workflows."""
        self.workflow: Any = None
        """Snakemake's own, whose jobs are counted."""

    def tasks(self) -> list[Task]:
        """What is to be done, in the order of the workflow."""
        if self.workflow is None:
            return []
        jobs = [job for job in _listed(self.workflow.dag) if job.rule.name in PRIORS and job.output]
        tasks = [self.task(job.rule.name, dict(job.wildcards_dict), str(next(iter(job.output)))) for job in jobs]
        self.ask(tasks)
        return tasks

    def task(self, rule: str, wildcards: Mapping[str, str], output: str) -> Task:
        """One job as a task, expected to take what any job of its rule takes."""
        expected = Expected.of_rule(rule)
        study = wildcards.get("study", "")
        name = {
            "dataset": f"preparing {wildcards.get('dataset')}",
            "figure": f"drawing {study}/{wildcards.get('figure')}",
            "table": f"writing {study}/{wildcards.get('table')}",
            "summarise": f"summarising {study}",
            "report": "writing the report",
        }.get(rule, rule)
        task = Task(output, rule, name, study, expected)
        if rule == "train" and self.project is not None:
            self.name_run(task, wildcards["machine"], wildcards["run"])
        return task

    def name_run(self, task: Task, machine: str, run: str) -> None:
        """Give a run its study, its configuration, and its name in the study's words: keys that vary, with values."""
        from scalestudy.analysis.identity import varied_columns
        from scalestudy.errors import UserError
        from scalestudy.figures.words import run_text
        from scalestudy.spec.columns import columns_of

        project, task.name = self.project, run
        try:
            found, task.study = project.runs.run(machine, run), project.runs.study_name(machine, run)
        except UserError:
            return
        task.configuration = f"{machine} {found.configuration}"
        study = next((one for one in project.chosen if one.name == task.study), None)
        if study is not None:
            if study.name not in self.keys:
                self.keys[study.name] = varied_columns(study)
            task.name = f"{study.name}: {run_text(study, self.keys[study.name], columns_of(found.spec))}"

    def ask(self, tasks: Iterable[Task]) -> None:
        """Ask the plan what the runs among `tasks` will take; runs that finished meanwhile are in its history."""
        from scalestudy.cluster.resources import Planner
        from scalestudy.spec.config import read_machine

        begin = time.monotonic()
        if self.project is None or begin - self.asked_at < self.took_s / MOST_SHARE:
            return
        planners: dict[str, Any] = {}
        for task in tasks:
            if task.rule == "train":
                machine, run = _of_result(task.output)
                if machine not in planners:
                    planners[machine] = Planner(machine, read_machine(machine))
                estimate = planners[machine].of(self.project.runs.run(machine, run))[1]
                if estimate.known and task.expected.source != "again":
                    task.expected = Expected(estimate.low_s, estimate.high_s, estimate.kind)
        self.asked_at, self.took_s = time.monotonic(), time.monotonic() - begin

    def keep_plan(self, wildcards: Mapping[str, str]) -> None:
        """Remember what is expected of a run, so that `scalestudy plan --actual` can compare it later."""
        if self.project is not None:
            from scalestudy.cluster.ledger.actual import note_plan

            machine, run = wildcards["machine"], wildcards["run"]
            asked, estimate = self.project.resources.planner(machine).of(self.project.runs.run(machine, run))
            note_plan(machine, run, asked, estimate)


def _of_result(output: str) -> tuple[str, str]:
    """Machine and run of `…/<machine>/runs/<run>/result.json`."""
    *_, machine, _, run, _ = Path(output).parts
    return machine, run


def _listed(dag: Any) -> list[Any]:
    for _ in range(10):  # Snakemake may be changing its jobs in another thread
        try:
            return sorted(dag.needrun_jobs(), key=lambda job: -job.priority)
        except RuntimeError:
            continue
    return []
