"""study.json: an expanded study. What is made after its runs reads it, and expands again only what has changed."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from scalestudy.files import read_json, sha256_file, sha256_text, write_json
from scalestudy.limits import VISIBLE, usable_cores, usable_memory_bytes
from scalestudy.site_fault import CHANGES
from scalestudy.spec.layout import CLAIMS, EXTENSIONS, STUDIES, machine_file, reference_file, study_folder
from scalestudy.spec.study import Study

PACKAGE = Path(__file__).parents[1]


def study_file(machine: str, scale: str, study: str) -> Path:
    """The study.json of a study."""
    return study_folder(machine, scale, study) / "study.json"


def origin(machine: str, study: str, more: Iterable[str]) -> dict[str, Any]:
    """Everything that an expansion is made from: digests of its files, changes of keys, what this host lets be used, and the
    code that expands. `more` are the files of its programs, which lie anywhere."""
    files = {STUDIES / f"{study}.yaml", *map(Path, (machine_file(machine), *more))}
    files |= {*CLAIMS.glob("*.yaml"), *EXTENSIONS.glob("*.py"), reference_file("step_times")}
    code = [*(PACKAGE / "spec").glob("*.py"), *(PACKAGE / "claims").glob("*.py"), *PACKAGE.glob("*/catalogue.py")]
    return {
        "files": {str(file): sha256_file(file) for file in sorted(files) if file.is_file()},
        "set": os.environ.get(CHANGES, ""),
        "here": [usable_cores(), usable_memory_bytes(), *map(os.environ.get, VISIBLE)],
        "code": sha256_text("".join(sha256_file(file) for file in sorted(code))),
    }


@functools.cache
def _adapter() -> TypeAdapter[Study]:
    return TypeAdapter(Study)


def write_study(study: Study, machine: str) -> Path:
    """Write study.json, with what it was expanded from."""
    file = study_file(machine, study.scale, study.name)
    plain = _adapter().dump_python(study, mode="json", by_alias=True, exclude_defaults=True)
    of_programs = {name for run in study.runs if run.spec.program for name in run.spec.program.files}
    write_json(file, {"origin": origin(machine, study.name, of_programs), "study": plain})
    return file


def stored_study(machine: str, scale: str, name: str) -> Study | None:
    """The study of study.json; None where there is none, or what it was expanded from has changed."""
    file = study_file(machine, scale, name)
    if not file.exists() or not (STUDIES / f"{name}.yaml").exists():
        return None
    data = read_json(file)
    stored_origin = data.get("origin") or {}
    if stored_origin != origin(machine, name, stored_origin.get("files", ())):
        return None
    return _adapter().validate_json(json.dumps(data["study"]))


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
