"""study.json: an expanded study. What is made after its runs reads it, and expands again only what has changed."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.claims.model import AnyClaim
from scalestudy.errors import UserError
from scalestudy.figures.catalogue import FigureSpec, TableSpec
from scalestudy.files import canonical_json, read_json, sha256_file, sha256_text, write_json
from scalestudy.site_fault import CHANGES
from scalestudy.spec.answer import AnswerSpec
from scalestudy.spec.base import Spec, parse
from scalestudy.spec.layout import (
    CLAIMS,
    EXTENSIONS,
    MACHINES,
    STUDIES,
    machine_and_campaign,
    reference_file,
    study_folder,
)
from scalestudy.spec.prices import Prices
from scalestudy.spec.study import Run, Study

if TYPE_CHECKING:
    from scalestudy.spec.run import RunSpec

PACKAGE = Path(__file__).parents[1]
PLAIN = ("name", "title", "question", "source", "scale", "tags", "repeats", "varied", "labels", "target_accuracy",
         "cannot_show", "left_out")  # fmt: skip
"""Fields of a study that are plain data."""


class _Parts(Spec):
    figures: tuple[FigureSpec, ...]
    tables: tuple[TableSpec, ...]
    claims: tuple[AnyClaim, ...]
    answers: tuple[AnswerSpec, ...]


class StoredRun(Run):
    """A run of study.json. Its spec is validated, and the models of a run imported, where something reads it."""

    def __init__(self, data: Mapping[str, Any], of_configuration: Mapping[str, Any]) -> None:
        for name in ("id", "configuration", "dataset"):
            object.__setattr__(self, name, data[name])
        repeat = {"seed": data["seed"], "repeat": data["repeat"]}
        self.__dict__.update(
            plain=data["spec"],
            columns={**of_configuration["columns"], **repeat},
            emulated=tuple(of_configuration["emulated"]),
            idle_alone=of_configuration["idle_alone"],
        )

    @functools.cached_property
    def spec(self) -> RunSpec:
        """The run's keys."""
        from scalestudy.spec.run import RunSpec

        return RunSpec.model_validate_json(canonical_json(self.__dict__["plain"]))

    @property
    def seed(self) -> int:
        """Seed of this repeat."""
        return int(self.columns["seed"])

    @property
    def repeat(self) -> int:
        """Number of the round, from 0."""
        return int(self.columns["repeat"])


def study_file(machine: str, scale: str, study: str) -> Path:
    """The study.json of a study."""
    return study_folder(machine, scale, study) / "study.json"


def origin(machine: str, study: str) -> dict[str, Any]:
    """Everything that an expansion is made from: digests of its files, changes of keys, and the code that expands."""
    files = [
        STUDIES / f"{study}.yaml",
        MACHINES / f"{machine_and_campaign(machine)[0]}.yaml",
        *CLAIMS.glob("*.yaml"),
        *CLAIMS.glob("*.yaml"),
        *EXTENSIONS.glob("*.py"),
        reference_file("step_times"),
    ]
    code = [*(PACKAGE / "spec").glob("*.py"), *(PACKAGE / "claims").glob("*.py"), *PACKAGE.glob("*/catalogue.py")]
    return {
        "files": {str(file): sha256_file(file) for file in sorted(files) if file.is_file()},
        "set": os.environ.get(CHANGES, ""),
        "code": sha256_text("".join(sha256_file(file) for file in sorted(code))),
    }


def write_study(study: Study, machine: str) -> Path:
    """Write study.json, with what it was expanded from."""
    first = {run.configuration: run for run in reversed(study.runs)}
    parts = {name: [part.plain() for part in getattr(study, name)] for name in _Parts.model_fields}
    content = {
        "origin": origin(machine, study.name),
        **{name: getattr(study, name) for name in PLAIN},
        **parts,
        "prices": None if study.prices is None else study.prices.plain(),
        "configurations": {
            name: {"columns": run.columns, "emulated": run.emulated, "idle_alone": run.idle_alone}
            for name, run in first.items()
        },
        "runs": [
            {"id": run.id, "configuration": run.configuration, "dataset": run.dataset, "seed": run.seed,
             "repeat": run.repeat, "spec": run.spec.plain()}
            for run in study.runs
        ],
    }  # fmt: skip
    file = study_file(machine, study.scale, study.name)
    write_json(file, content)
    return file


def stored_study(machine: str, scale: str, name: str) -> Study | None:
    """The study of study.json; None where there is none, or what it was expanded from has changed."""
    file = study_file(machine, scale, name)
    if not file.exists() or not (STUDIES / f"{name}.yaml").exists():
        return None
    data = read_json(file)
    return _study_of(data, file) if data.get("origin") == origin(machine, name) else None


def expanded_study(machine: str, scale: str, name: str) -> Study:
    """The study of study.json, which is made where it is missing or out of date. Raises UserError where the study is wrong."""
    if (stored := stored_study(machine, scale, name)) is not None:
        return stored
    from scalestudy.spec.config import changes_of_call, read_machine
    from scalestudy.spec.read_study import read_studies

    given = changes_of_call()
    (study,) = read_studies([name], scale, read_machine(machine), machine_name=machine, changes=given)
    write_study(study, machine)
    return study


def _study_of(data: Mapping[str, Any], file: Path) -> Study:
    parts, problems = parse(_Parts, {name: data[name] for name in _Parts.model_fields})
    if parts is None:
        raise UserError(problems[0].what, str(file), "delete it; it will be made again")
    fields: dict[str, Any] = {name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in PLAIN}
    return Study(
        **fields,
        **{name: getattr(parts, name) for name in _Parts.model_fields},
        runs=tuple(StoredRun(run, data["configurations"][run["configuration"]]) for run in data["runs"]),
        prices=Prices.model_validate(data["prices"]) if data["prices"] else None,
    )
