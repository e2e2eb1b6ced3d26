"""The files that there are to make, and what each is made from."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snakemake.io import ancient
from snakemake.ioflags import before_update

from scalestudy.claims.model import Published
from scalestudy.dag.run_index import RunIndex
from scalestudy.errors import UserError, nearest
from scalestudy.files import canonical_json, sha256_file
from scalestudy.results.stored import contents_digest
from scalestudy.spec import layout
from scalestudy.spec.study import Study

GRAPHS = {"--dag", "--rulegraph", "--filegraph", "--d3dag", "--report", "--summary", "--detailed-summary", "-S", "-D"}
"""Options of Snakemake that show what everything is made from, and make nothing."""


class Targets:
    """Inputs of rules, and the params that say from what their outputs were made."""

    def __init__(self, runs: RunIndex) -> None:
        self.runs = runs
        self.draws_graph = bool(GRAPHS & set(sys.argv))

    def spec_json(self, machine: str, run: str) -> str:
        """The spec of a run, as it is stored."""
        return canonical_json(self.runs.run(machine, run).spec.plain())

    def dataset_json(self, dataset: str) -> str:
        """The spec of a dataset."""
        return canonical_json(self.runs.run_with(dataset).spec.data.plain())

    def train_inputs(self, machine: str, run: str) -> dict[str, str]:
        """Spec and data of a run: the same before and after it, and of any age."""
        folder, planned = layout.run_folder(machine, run), self.runs.run(machine, run)
        inputs = {"spec": str(folder / "spec.json"), "data": str(layout.manifest_file(planned.dataset))}
        return {name: ancient(file) for name, file in inputs.items()}

    def results(self, machine: str, scale: str, study: str) -> list[str]:
        """The results of all runs of a study; those of finished runs as they are, made by no rule.

        So a finished run is no job: no trigger, profile, lost record or purged dataset plans it again. Drawings of the
        graph show all jobs.
        """
        files = [str(layout.result_file(machine, run.id)) for run in self.runs.study(machine, scale, study).runs]
        if self.draws_graph:
            return files
        return [ancient(before_update(file) if Path(file).exists() else file) for file in files]

    def measured(self, machine: str, scale: str, study: str) -> str:
        """What the results of a study say: by their content, because one from a backup can be older than the tables."""
        return contents_digest(machine, [run.id for run in self.runs.study(machine, scale, study).runs])

    def shown(self, machine: str, scale: str, name: str) -> str:
        """What of a study changes its summary without changing its runs: order, labels, titles; and the machine's prices."""
        study = self.runs.study(machine, scale, name)
        known: list[Any] = [study.title, study.question, study.source, study.cannot_show, study.varied, study.labels]
        if study.target_accuracy is not None:
            known.append(study.target_accuracy)
        prices = self.runs.machine(machine).prices
        return canonical_json([*known, [run.id for run in study.runs], *([prices.plain()] if prices else [])])

    def figure(self, machine: str, scale: str, study: str, name: str) -> str:
        """How a figure is declared."""
        figures = self.runs.study(machine, scale, study).figures
        return _declared(
            study, "figure", name, {figure.file_name: canonical_json(figure.plain()) for figure in figures}
        )

    def table(self, machine: str, scale: str, study: str, name: str) -> str:
        """How a table is declared."""
        tables = self.runs.study(machine, scale, study).tables
        return _declared(study, "table", name, {table.name: canonical_json(table.plain()) for table in tables})

    def claims(self, machine: str, scale: str, study: str) -> str:
        """How a study's claims are declared."""
        return canonical_json([claim.plain() for claim in self.runs.study(machine, scale, study).claims])

    def claim_references(self, machine: str, scale: str, study: str) -> list[str]:
        """The published numbers that a study's claims are about."""
        claims = [claim for claim in self.runs.study(machine, scale, study).claims if isinstance(claim, Published)]
        names = dict.fromkeys(name for claim in claims for name in claim.reference)
        return [str(layout.reference_file(name)) for name in names]

    def published_in_claims(self, machine: str, scale: str, study: str) -> str:
        """What the published numbers say that a study's claims are about."""
        return _contents(self.claim_references(machine, scale, study))

    def all_claims(self) -> list[str]:
        """The verdicts of all configured studies that have claims."""
        self.runs.raise_errors()
        return [file for study in self.runs.chosen for file in self._claims_of(study)]

    def _claims_of(self, study: Study) -> list[str]:
        return [str(layout.claims_file(self.runs.config.folder, study.scale, study.name))] if study.claims else []

    def reference(self, machine: str, scale: str, study: str, figure: str) -> list[str]:
        """The published numbers that a figure shows."""
        for found in self.runs.study(machine, scale, study).figures:
            if found.file_name == figure and found.reference:
                return [str(layout.reference_file(found.reference))]
        return []

    def published_in_figure(self, machine: str, scale: str, study: str, figure: str) -> str:
        """What the published numbers say that a figure shows."""
        return _contents(self.reference(machine, scale, study, figure))

    def of_study(self, study: Study) -> list[str]:
        """Everything of one configured study. Results are named, or a deleted one would not be missed."""
        machine, scale = self.runs.config.folder, study.scale
        return [
            *self.results(machine, scale, study.name),
            str(layout.study_folder(machine, scale, study.name) / "runs.parquet"),
            *(str(layout.figure_file(machine, scale, study.name, figure.file_name)) for figure in study.figures),
            *(str(layout.table_file(machine, scale, study.name, table.name)) for table in study.tables),
            *self._claims_of(study),
        ]

    def of_report(self, machine: str, scale: str) -> list[str]:
        """Everything that the report of a machine and scale shows."""
        if not self.runs.is_configured(machine, scale):
            name, campaign = layout.machine_and_campaign(machine)
            config = f"--config machine={name} scale={scale}" + (f" campaign={campaign}" if campaign else "")
            raise UserError(
                f"the report of machine {machine} at scale {scale} needs {config}",
                f"results/{machine}",
                f"snakemake {layout.report_file(machine, scale)} --cores 1 {config}",
            )
        self.runs.raise_errors()
        return [target for study in self.runs.chosen for target in self.of_study(study)]


def _contents(files: Iterable[str]) -> str:
    """Digests of what the files hold; one that is missing is an input that Snakemake misses."""
    return canonical_json([sha256_file(file) for file in files if Path(file).is_file()])


def _declared(study: str, kind: str, name: str, declared: dict[str, str]) -> str:
    if name not in declared:
        raise UserError(
            f"study `{study}` has no {kind} `{name}`", f"config/studies/{study}.yaml", nearest(name, declared)
        )
    return declared[name]
