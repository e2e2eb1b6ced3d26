"""A study with its results as a Workflow Run RO-Crate, for Zenodo, WorkflowHub and other people.

The description follows RO-Crate 1.1 (w3id.org/ro/crate/1.1), Workflow RO-Crate 1.0 (w3id.org/workflowhub/workflow-ro-crate/1.0)
and Workflow Run Crate 0.5 (w3id.org/ro/wfrun/workflow/0.5): the workflow, and an action per run with its specification, result,
times and status. `commands/share.py` packs.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scalestudy import __version__
from scalestudy.spec.config import read_machine
from scalestudy.spec.study import Study

CRATE = "https://w3id.org/ro/crate/1.1"
WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
}
BIOSCHEMAS = "https://bioschemas.org/profiles"
LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
TRAIN = "#scalestudy-train"
LICENSES = "https://spdx.org/licenses/"
OUR_LICENSE = f"{LICENSES}Apache-2.0"
TYPES = {".parquet": "application/vnd.apache.parquet", ".md": "text/markdown", ".yaml": "application/yaml"}
PARTS = {
    "result.json": "metrics, status, and what they were measured with",
    "spec.json": "the frozen specification of the run",
    "steps.parquet": "every step of every rank",
    "system.parquet": "samples of the nodes, one a second",
    "exchange.parquet": "updates of the parameter servers",
}
CODE = {
    "workflow/": "The rules and the Python package that they call",
    "envs/": "Software environments with pinned versions",
    "profiles/": "Snakemake's profiles",
}
HOMES = {"python": "https://www.python.org", "torch": "https://pytorch.org"}
"""Software of which runs say the version."""
Entity = dict[str, Any]
Results = Mapping[str, tuple[Mapping[str, Any], Sequence[str]]]
"""By run its result, and the paths of its files."""


def crate_of(
    study: Study,
    machine: str,
    runs: Results,
    code: Sequence[str],
    outputs: Sequence[str],
    author: str | None,
    spdx: str,
) -> Entity:
    """The content of ro-crate-metadata.json. `code` begins with workflow, study file and machine file; `outputs` are figures,
    tables and claims; all paths are below the current folder."""
    workflow, study_file, machine_file = code[:3]
    license_ = f"{LICENSES}{spdx}"
    agent = {"agent": _refs(["#author"])} if author else {}
    files = _files(study, runs, code, outputs)
    software = [
        _entity(f"#{key}-{number}", "SoftwareApplication", name=key, softwareVersion=number, url=home)
        for key, home in HOMES.items()
        for number in sorted(
            {str(result["instrument"][key]) for result, _ in runs.values() if key in _instrument(result)}
        )
    ]
    facts: dict[str, list[str]] = {}
    for result, _ in runs.values():
        for key, value in _instrument(result).items():
            facts[key] = list(dict.fromkeys((*facts.get(key, ()), str(value))))
    values = [
        _entity(f"#machine-{key}", "PropertyValue", name=key, value=found[0] if len(found) == 1 else found)
        for key, found in facts.items()
    ]
    actions = [
        _entity(
            f"#run-{run}", "CreateAction", name=f"Run {run}",
            description=f"{result['status']}: {result['reason']}" if result.get("reason") else result["status"],
            instrument=_refs([TRAIN]), object=_refs([_spec(paths), machine_file]),
            result=_refs(path for path in paths if path != _spec(paths)), startTime=result.get("started"),
            endTime=result.get("ended"), **_outcome(result), **agent,
        )
        for run, (result, paths) in runs.items()
    ]  # fmt: skip
    started, ended = (
        sorted(result[key] for result, _ in runs.values() if result.get(key)) for key in ("started", "ended")
    )
    results = [path for _, paths in runs.values() for path in paths if path.endswith("/result.json")]
    graph = [
        _entity("ro-crate-metadata.json", "CreativeWork", about=_refs(["./"]), conformsTo=_refs([CRATE, WORKFLOW_CRATE])),
        _entity(
            "./", "Dataset", name=f"{study.title}: measured on {machine}, scale {study.scale}",
            description=f"{study.question} {len(runs)} runs of the study `{study.name}` with specifications, results, "
            "figures and tables, and the workflow that made them.",
            datePublished=datetime.now().astimezone().isoformat(timespec="seconds"), license=_refs([license_]),
            keywords=", ".join(["distributed training", "benchmark", *study.tags]),
            conformsTo=_refs([*PROFILES, WORKFLOW_CRATE]), mainEntity=_refs([workflow]), hasPart=_refs([workflow, *files]),
            mentions=_refs(["#workflow-run", *(each["@id"] for each in actions), "#machine"]),
            author=_refs(["#author"]) if author else None,
        ),
        *(_entity(at, "CreativeWork", name=at.removeprefix(LICENSES), url=at) for at in {license_, OUR_LICENSE}),
        *(_entity(at, "CreativeWork", name=name, version="0.5") for at, name in PROFILES.items()),
        _entity(WORKFLOW_CRATE, "CreativeWork", name="Workflow RO-Crate", version="1.0"),
        *([_entity("#author", "Person", name=author)] if author else []),
        _entity(
            workflow, ["File", "SoftwareSourceCode", "ComputationalWorkflow"], name="scalestudy", version=__version__,
            description="From one YAML file per study to every table and figure of a distributed-training evaluation",
            license=_refs([OUR_LICENSE]), programmingLanguage=_refs([LANGUAGE]), hasPart=_refs([TRAIN]),
            input=_refs(["#parameter-study"]), output=_refs(["#parameter-results"]), encodingFormat="text/plain",
            conformsTo=_refs([f"{BIOSCHEMAS}/ComputationalWorkflow/1.0-RELEASE"]), contentSize=_size(workflow),
        ),
        _entity(
            LANGUAGE, "ComputerLanguage", name="Snakemake", url=_refs(["https://snakemake.github.io"]),
            identifier=_refs(["https://doi.org/10.12688/f1000research.29032.1"]), version=version("snakemake"),
        ),
        *(
            _entity(
                f"#parameter-{name}", "FormalParameter", additionalType="File", name=name, description=description,
                valueRequired=True, conformsTo=_refs([f"{BIOSCHEMAS}/FormalParameter/1.0-RELEASE"]),
            )
            for name, description in (("study", "The study file"), ("results", "Results, figures and tables"))
        ),
        _entity(
            TRAIN, "SoftwareApplication", name="scalestudy train", softwareVersion=__version__,
            softwareRequirements=_refs(each["@id"] for each in software),
        ),
        *software,
        _entity(
            "#machine", "IndividualProduct", name=machine, subjectOf=_refs([machine_file]),
            description=read_machine(machine).description or "The machine on which the runs were made",
            additionalProperty=_refs(value["@id"] for value in values),
        ),
        *values, *files.values(),
        _entity(
            "#workflow-run", "CreateAction", name=f"Study {study.name} at scale {study.scale} on {machine}",
            description=study.question, instrument=_refs([workflow]), object=_refs([study_file, machine_file]),
            result=_refs([*outputs, *results]), startTime=next(iter(started), None), endTime=next(reversed(ended), None), **agent,
        ),
        *actions,
    ]  # fmt: skip
    return {"@context": f"{CRATE}/context", "@graph": graph}


def _entity(at: str, kind: str | list[str], **more: Any) -> Entity:
    return {"@id": at, "@type": kind, **{key: value for key, value in more.items() if value is not None}}


def _refs(ids: Iterable[str]) -> Entity | list[Entity]:
    """References; one stands alone, as RO-Crate has it."""
    found = [{"@id": each} for each in dict.fromkeys(ids)]
    return found[0] if len(found) == 1 else found


def _size(path: str) -> str:
    return str(Path(path).stat().st_size)


def _instrument(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result.get("instrument") or {}


def _spec(paths: Sequence[str]) -> str:
    return next(path for path in paths if path.endswith("/spec.json"))


def _outcome(result: Mapping[str, Any]) -> Entity:
    if result["status"] == "valid":
        return {"actionStatus": "http://schema.org/CompletedActionStatus"}
    error = str(result.get("reason") or result["status"])
    return {"actionStatus": "http://schema.org/FailedActionStatus", "error": error}


def folders_of(code: Iterable[str]) -> list[str]:
    """The folders of code that are described as a whole."""
    return sorted({f"{path.split('/')[0]}/" for path in code if "/" in path} & CODE.keys())


def _files(study: Study, runs: Results, code: Sequence[str], outputs: Sequence[str]) -> dict[str, Entity]:
    """Every file but the main workflow, which stands apart; code as one folder."""
    workflow, study_file, machine_file = code[:3]
    about = {study_file: study.question, machine_file: "Hardware and limits"}
    examples = {study_file: "#parameter-study", **dict.fromkeys(outputs, "#parameter-results")}
    names = {path: Path(path).name for path in code if "/" not in path or path.startswith("config/")}
    names |= {path: f"{Path(path).stem} of {study.name}" for path in outputs}
    for run, (_, paths) in runs.items():
        names |= {path: f"{Path(path).name} of {run}" for path in paths}
        about |= {path: PARTS[Path(path).name] for path in paths}
    found = {
        folder: _entity(folder, "Dataset", name=folder.rstrip("/"), description=CODE[folder])
        for folder in folders_of(code)
    }
    for path, name in names.items():
        if path != workflow:
            kind = TYPES.get(Path(path).suffix) or mimetypes.guess_type(path)[0] or "text/plain"
            example = _refs([examples[path]]) if path in examples else None
            found[path] = _entity(
                path, "File", name=name, description=about.get(path), encodingFormat=kind, contentSize=_size(path),
                exampleOfWork=example, about=_refs(["./"]) if path == "README.md" else None,
            )  # fmt: skip
    return found
