"""Functions of a job's wildcards, as Snakemake calls them, for inputs, params, resources and report labels."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from snakemake.io import ancient
from snakemake.ioflags import before_update

from scalestudy.claims.model import Published
from scalestudy.dag.project import Project
from scalestudy.errors import UserError, of_system, raise_all
from scalestudy.files import canonical_json, sha256_file
from scalestudy.results.stored import contents_digest, is_skipped
from scalestudy.spec import layout
from scalestudy.spec.study import Run, Study
from scalestudy.spec.study_json import study_file

PACKAGE = Path(__file__).parents[1]
GRAPHS = {"--dag", "--rulegraph", "--filegraph", "--d3dag", "--report", "--summary", "--detailed-summary", "-S", "-D"}
"""Options of Snakemake that show what everything is made from, and make nothing."""


def end(error: UserError | OSError) -> NoReturn:
    """End Snakemake with a message and status 2. A WorkflowError would add the frames of a traceback."""
    sys.stderr.write(f"scalestudy: {of_system(error) if isinstance(error, OSError) else error}\n")
    sys.exit(2)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its errors end Snakemake with a message."""

    @functools.wraps(function)
    def answer(*words: Any) -> Any:
        try:
            return function(*words)
        except (UserError, OSError) as error:
            end(error)

    # Snakemake asks for it in each job, and Python works out that of a wrapped function anew each time.
    answer.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return answer


class Ask:
    """Answers to rules about their wildcards `w`; an error in one ends Snakemake with a message."""

    def __init__(self, project: Project) -> None:
        self.project = project
        options = {word.partition("=")[0] for word in sys.argv}
        self.draws_graph = bool(GRAPHS & options)
        self.names_all = self.draws_graph or "--delete-all-output" in options
        for name in vars(type(self)):
            if not name.startswith("_"):
                setattr(self, name, guarded(getattr(self, name)))

    # Targets

    def everything(self, w: Any) -> list[str]:
        """All that is configured. A study that is wrong is an error here."""
        raise_all(self.project.found.errors())
        report = str(layout.report_file(self.project.folder, self.project.scale))
        return [report, *(file for study in self.project.chosen for file in self._of_study(study))]

    def all_claims(self, w: Any) -> list[str]:
        """The verdicts of all configured studies. A study that is wrong is an error here."""
        raise_all(self.project.found.errors())
        return [file for study in self.project.chosen for file in self._claims_of(study)]

    def study(self, name: str) -> Callable[[Any], list[str]]:
        """Everything of one study; its errors, where it is wrong."""

        def targets(w: Any) -> list[str]:
            if name in self.project.found.wrong:
                raise self.project.found.wrong[name]
            return self._of_study(self.project.study(self.project.folder, self.project.scale, name))

        return guarded(targets)

    def report_inputs(self, w: Any) -> list[str]:
        """Everything that the report of a machine and scale shows."""
        if not self.project.is_configured(w.machine, w.scale):
            config = f"--config {layout.config_of(w.machine, w.scale)}"
            raise UserError(
                f"the report of machine {w.machine} at scale {w.scale} needs {config}",
                f"results/{w.machine}",
                f"snakemake {layout.report_file(w.machine, w.scale)} --cores 1 {config}",
            )
        raise_all(self.project.found.errors())
        return [file for study in self.project.chosen for file in self._shown_of(study)]

    def explained(self, w: Any) -> str:
        """Digest of the results that explain programs, which the report alone shows."""
        return contents_digest(w.machine, [run.id for study in self.project.chosen for run in study.explained])

    # Data and runs

    def dataset_json(self, w: Any) -> str:
        """The spec of a dataset."""
        return canonical_json(self.project.run_with(w.dataset).spec.data.to_dict())

    def spec_json(self, w: Any) -> str:
        """The spec of a run, as it is stored."""
        return canonical_json(self.project.run(w.machine, w.run).spec.to_dict())

    def train_inputs(self, w: Any) -> dict[str, Any]:
        """Spec and data of a run, of a program its spec alone: the same before and after it, and of any age.

        A run that was skipped also has what its reason may depend on.
        """
        run = self.project.run(w.machine, w.run)
        inputs = {"spec": str(layout.run_folder(w.machine, w.run) / "spec.json")}
        if run.spec.program is None:
            inputs["data"] = str(layout.manifest_file(run.dataset))
        changed = self._changed_since_skipped(str(layout.result_file(w.machine, w.run)), w.machine)
        if changed:
            return {**inputs, **changed}
        is_made_again = run.spec.program is None and self._is_data_made_again(run.dataset)
        kept = {name: self._of_any_age(file) for name, file in inputs.items()}
        return {**kept, "data": inputs["data"]} if is_made_again else kept

    def dataset_inputs(self, w: Any) -> dict[str, list[str]]:
        """What the reason of skipped data may depend on; other data has no inputs."""
        return self._changed_since_skipped(str(layout.manifest_file(w.dataset)), self.project.folder)

    @functools.cached_property
    def _is_data_made_again(self) -> Callable[[str], bool]:
        """Whether skipped data is looked for again; many runs share a dataset."""
        return functools.cache(
            lambda dataset: bool(self._changed_since_skipped(str(layout.manifest_file(dataset)), self.project.folder))
        )

    def priority(self, w: Any) -> int:
        """Rank of a run among the jobs that are ready."""
        return self.project.indexed(w.machine, w.run).priority

    def run_resource(self, name: str) -> Callable[[Any], Any]:
        """One resource of a run's job."""
        return guarded(lambda w: getattr(self.project.of_run(w.machine, w.run), name))

    def dataset_resource(self, name: str) -> Callable[[Any], Any]:
        """One resource of the job that prepares a dataset."""
        return guarded(lambda w: getattr(self.project.of_dataset(w.dataset)[0], name))

    # Results

    def study_json(self, w: Any) -> Any:
        """A study, expanded."""
        return self._of_any_age(str(study_file(w.machine, w.scale, w.study)))

    def results(self, w: Any) -> list[str]:
        """The results of all runs of a study; those of finished runs as they are, made by no rule.

        So a finished run is no job: no trigger, profile, lost record or purged dataset plans it again. Drawings of the
        graph show all jobs.
        """
        return self._results(self._study(w).runs, w.machine)

    def measured(self, w: Any) -> str:
        """Digest of a study's results: by their content, because one from a backup can be older than the tables."""
        return contents_digest(w.machine, [run.id for run in self._study(w).runs])

    def shown(self, w: Any) -> str:
        """The parts of a study that change its summary and no run: order, labels, titles."""
        study = self._study(w)
        parts: list[Any] = [study.title, study.question, study.source, study.cannot_show, study.varied, study.labels]
        parts += [] if study.target_accuracy is None else [study.target_accuracy]
        return canonical_json([*parts, [run.id for run in study.runs]])

    def claims(self, w: Any) -> str:
        """How a study's claims are declared."""
        return canonical_json([claim.to_dict() for claim in self._study(w).claims])

    def declared(self, w: Any) -> str:
        """How a figure or a table is declared."""
        return canonical_json(self._part(w)[1].to_dict())

    def labels(self, w: Any) -> dict[str, str]:
        """Labels of a figure or a table in Snakemake's report."""
        kind, part = self._part(w)
        return {kind: _literal(part.title or getattr(w, kind))}

    def references(self, w: Any) -> list[str]:
        """The published numbers that a figure shows, or that a study's claims are about."""
        if hasattr(w, "figure"):
            names = [self._part(w)[1].reference]
        else:
            claims = [claim for claim in self._study(w).claims if isinstance(claim, Published)]
            names = [name for claim in claims for name in claim.reference]
        return [str(layout.reference_file(name)) for name in dict.fromkeys(names) if name]

    def published(self, w: Any) -> str:
        """Digests of the published numbers; a file that is missing is an input that Snakemake misses."""
        return canonical_json([sha256_file(file) for file in self.references(w) if Path(file).is_file()])

    def of_study(self, name: str) -> Callable[[Any], Any]:
        """A study's `title` or `question`, for Snakemake's report."""
        return guarded(lambda w: _literal(getattr(self._study(w), name)))

    def _study(self, w: Any) -> Study:
        return self.project.study(w.machine, w.scale, w.study)

    def _part(self, w: Any) -> tuple[str, Any]:
        """`figure` or `table`, and the one of a study that the wildcards name."""
        study = self._study(w)
        return ("figure", study.figure(w.figure)) if hasattr(w, "figure") else ("table", study.table(w.table))

    def _results(self, runs: Iterable[Run], machine: str) -> list[str]:
        files = [str(layout.result_file(machine, run.id)) for run in runs]
        if self.draws_graph:
            return files
        again = {file for file in files if self._changed_since_skipped(file, machine)}
        return [
            file if file in again else ancient(before_update(file) if Path(file).exists() else file) for file in files
        ]

    def _of_any_age(self, file: str) -> Any:
        """An input that is used as it is, however old; one that exists is made by no rule.

        Where Snakemake (9.27) makes a file that is `ancient` and exists again, as after the kill of a driver that was writing
        it, it runs nothing that depends on the file, and ends with success.
        """
        is_there = Path(file).exists() and not self.names_all
        return ancient(before_update(file) if is_there else file)

    def _changed_since_skipped(self, output: str, machine: str) -> dict[str, list[str]]:
        """The site and machine files, where a result or manifest was skipped before one of them changed."""
        files, changed_s = _changeable(self.project.site, machine)
        if Path(output).exists() and Path(output).stat().st_mtime < changed_s and is_skipped(output):
            return {"changed": files}
        return {}

    def _claims_of(self, study: Study) -> list[str]:
        return [str(layout.claims_file(self.project.folder, study.scale, study.name))] if study.claims else []

    def _of_study(self, study: Study) -> list[str]:
        """Everything of one configured study. Results are named, or a deleted one would not be missed."""
        return [*self._results(study.runs, self.project.folder), *self._shown_of(study)]

    def _shown_of(self, study: Study) -> list[str]:
        """What is made from the results of a study's runs, and the results that nothing else is made from."""
        machine, scale = self.project.folder, study.scale
        return [
            *self._results(study.explained, machine),
            str(layout.study_folder(machine, scale, study.name) / "runs.parquet"),
            *(str(layout.figure_file(machine, scale, study.name, figure.file_name)) for figure in study.figures),
            *(str(layout.table_file(machine, scale, study.name, table.name)) for table in study.tables),
            *self._claims_of(study),
        ]


def _literal(text: str) -> str:
    """A text in which Snakemake's report sees no `{wildcard}`: an invisible word joiner follows each brace."""
    return text.replace("{", "{\u2060")


@functools.cache
def _changeable(site: str | None, machine: str) -> tuple[list[str], float]:
    """What a run can be skipped for: the site file and the machine file; and when one of them changed last."""
    files = [file for file in (site, layout.machine_file(machine)) if file and Path(file).is_file()]
    return files, max((Path(file).stat().st_mtime for file in files), default=0.0)


def code(*folders: str) -> list[str]:
    """The source files of parts of the package: drawings by other code are made again."""
    files = [file for folder in folders for file in (PACKAGE / folder).rglob("*") if file.suffix in (".py", ".j2")]
    return sorted(str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file) for file in files)
