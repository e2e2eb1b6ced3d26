"""A study with its results as a Workflow Run RO-Crate, for Zenodo, WorkflowHub and other people.

The description follows RO-Crate 1.1 (w3id.org/ro/crate/1.1), Workflow RO-Crate 1.0 (w3id.org/workflowhub/workflow-ro-crate/1.0)
and Workflow Run Crate 0.5 (w3id.org/ro/wfrun/workflow/0.5): the workflow, and an action per run with its specification, result,
times and status. `crate_of` describes; `commands/export.py` packs.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scalestudy import __version__
from scalestudy.spec.study import Study

METADATA = "ro-crate-metadata.json"
CRATE = "https://w3id.org/ro/crate/1.1"
WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
}
LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
TRAIN = "#scalestudy-train"
OUR_LICENSE = "Apache-2.0"
TYPES = {
    ".parquet": "application/vnd.apache.parquet", ".md": "text/markdown", ".yaml": "application/yaml",
    ".tex": "application/x-tex", ".svg": "image/svg+xml", ".json": "application/json", ".csv": "text/csv",
    ".png": "image/png", ".pdf": "application/pdf", ".html": "text/html",
}  # fmt: skip
PARTS = {
    "result.json": "metrics, status, and what they were measured with",
    "spec.json": "the frozen specification of the run",
    "steps.parquet": "every step of every rank",
    "system.parquet": "samples of the nodes, one a second",
    "exchange.parquet": "updates of the parameter servers",
}
Entity = dict[str, Any]


@dataclass(frozen=True)
class DoneRun:
    """A run with its result, and the paths of its files in the crate."""

    id: str
    result: Mapping[str, Any]
    files: tuple[str, ...]


@dataclass(frozen=True)
class PackedStudy:
    """Everything that a crate holds, by its paths in it."""

    study: Study
    machine: str
    description: str
    """Of the machine, one line."""
    workflow: str
    """The main Snakefile."""
    study_file: str
    machine_file: str
    runs: tuple[DoneRun, ...]
    outputs: tuple[str, ...]
    """Figures, tables and claims."""
    code: tuple[str, ...]
    sizes: Mapping[str, int]
    license: str
    """Identifier of SPDX."""
    author: str | None
    when: datetime


def crate_of(packed: PackedStudy) -> Entity:
    """The content of ro-crate-metadata.json."""
    study = packed.study
    actions = [_run_action(packed, run) for run in packed.runs]
    files = _files(packed)
    people = [{"@id": "#author", "@type": "Person", "name": packed.author}] if packed.author else []
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"{study.title}: measured on {packed.machine}, scale {study.scale}",
        "description": f"{study.question} {len(packed.runs)} runs of the study `{study.name}` with specifications, results, "
        "figures and tables, and the workflow that made them.",
        "datePublished": packed.when.isoformat(timespec="seconds"),
        "license": {"@id": _license(packed.license)},
        "keywords": ", ".join(["distributed training", "benchmark", *study.tags]),
        "conformsTo": _refs([*PROFILES, WORKFLOW_CRATE]),
        "mainEntity": {"@id": packed.workflow},
        "hasPart": _refs([packed.workflow, *(entity["@id"] for entity in files)]),
        "mentions": _refs(["#workflow-run", *(entity["@id"] for entity in actions), "#machine"]),
        **({"author": {"@id": "#author"}} if people else {}),
    }
    graph: list[Entity] = [
        {
            "@id": METADATA,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": _refs([CRATE, WORKFLOW_CRATE]),
        },
        root,
        *(
            {"@id": _license(name), "@type": "CreativeWork", "name": name, "url": _license(name)}
            for name in dict.fromkeys([packed.license, OUR_LICENSE])
        ),
        *({"@id": at, "@type": "CreativeWork", "name": name, "version": "0.5"} for at, name in PROFILES.items()),
        {"@id": WORKFLOW_CRATE, "@type": "CreativeWork", "name": "Workflow RO-Crate", "version": "1.0"},
        *people,
        *_software(packed),
        *_machine(packed),
        *files,
        _workflow_action(packed),
        *actions,
    ]
    return {"@context": f"{CRATE}/context", "@graph": graph}


def _license(name: str) -> str:
    return f"https://spdx.org/licenses/{name}"


def _refs(ids: Iterable[str]) -> Entity | list[Entity]:
    """References; one stands alone, as RO-Crate has it."""
    found = [{"@id": each} for each in dict.fromkeys(ids)]
    return found[0] if len(found) == 1 else found


HOMES = {"python": "https://www.python.org", "torch": "https://pytorch.org"}
"""Software of which runs say the version."""


def _software(packed: PackedStudy) -> list[Entity]:
    """The workflow, its language, its input and output, the program that makes a run, and the software that runs name."""
    versions: list[Entity] = []
    for key, home in HOMES.items():
        found = {str(run.result["instrument"][key]) for run in packed.runs if key in run.result.get("instrument", {})}
        versions += [_application(f"#{key}-{number}", key, number, url=home) for number in sorted(found)]
    requirements = _refs(entity["@id"] for entity in versions)
    return [
        {
            "@id": packed.workflow,
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "name": "scalestudy",
            "description": "From one YAML file per study to every table and figure of a distributed-training evaluation",
            "version": __version__,
            "license": {"@id": _license(OUR_LICENSE)},
            "programmingLanguage": {"@id": LANGUAGE},
            "hasPart": {"@id": TRAIN},
            "input": {"@id": "#parameter-study"},
            "output": {"@id": "#parameter-results"},
            "conformsTo": {"@id": "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"},
            "encodingFormat": "text/plain",
            "contentSize": str(packed.sizes[packed.workflow]),
        },
        {
            "@id": LANGUAGE,
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "url": {"@id": "https://snakemake.github.io"},
            "identifier": {"@id": "https://doi.org/10.12688/f1000research.29032.1"},
            "version": version("snakemake"),
        },
        _parameter("#parameter-study", "study", "The study file"),
        _parameter("#parameter-results", "results", "Results, figures and tables"),
        _application(TRAIN, "scalestudy train", __version__, softwareRequirements=requirements),
        *versions,
    ]


def _application(at: str, name: str, number: str, **more: Any) -> Entity:
    return {"@id": at, "@type": "SoftwareApplication", "name": name, "softwareVersion": number, **more}


def _parameter(at: str, name: str, description: str) -> Entity:
    return {
        "@id": at,
        "@type": "FormalParameter",
        "additionalType": "File",
        "name": name,
        "description": description,
        "valueRequired": True,
        "conformsTo": {"@id": "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"},
    }


def _machine(packed: PackedStudy) -> list[Entity]:
    """The machine, with what the runs found there: a value per fact and difference."""
    facts: dict[str, list[str]] = {}
    for run in packed.runs:
        for key, value in (run.result.get("instrument") or {}).items():
            if str(value) not in facts.setdefault(str(key), []):
                facts[str(key)].append(str(value))
    values: list[Entity] = [
        {
            "@id": f"#machine-{key}",
            "@type": "PropertyValue",
            "name": key,
            "value": found[0] if len(found) == 1 else found,
        }
        for key, found in facts.items()
    ]
    machine = {
        "@id": "#machine",
        "@type": "IndividualProduct",
        "name": packed.machine,
        "description": packed.description or "The machine on which the runs were made",
        "additionalProperty": _refs(value["@id"] for value in values),
        "subjectOf": {"@id": packed.machine_file},
    }
    return [machine, *values]


def _files(packed: PackedStudy) -> list[Entity]:
    """Every file but the main workflow's entity, which stands apart; code as one folder."""
    found: list[Entity] = [
        {"@id": folder, "@type": "Dataset", "name": folder.rstrip("/"), "description": CODE[folder]}
        for folder in folders_of(packed.code)
    ]
    singles = [
        path for path in packed.code if ("/" not in path or path.startswith("config/")) and path != packed.workflow
    ]
    found += [_file(packed, path, Path(path).name) for path in singles]
    found += [_file(packed, path, f"{Path(path).stem} of {packed.study.name}") for path in packed.outputs]
    for run in packed.runs:
        found += [
            _file(packed, path, f"{Path(path).name} of {run.id}", PARTS.get(Path(path).name, "")) for path in run.files
        ]
    described = {entity["@id"]: entity for entity in found}
    for path, description in ((packed.study_file, packed.study.question), (packed.machine_file, "Hardware and limits")):
        described[path]["description"] = description
    described[packed.study_file]["exampleOfWork"] = {"@id": "#parameter-study"}
    for path in packed.outputs:
        described[path]["exampleOfWork"] = {"@id": "#parameter-results"}
    if "README.md" in described:
        described["README.md"]["about"] = {"@id": "./"}
    return list(described.values())


CODE = {
    "workflow/": "The rules and the Python package that they call",
    "envs/": "Software environments with pinned versions",
    "profiles/": "Snakemake's profiles",
}


def folders_of(code: Iterable[str]) -> list[str]:
    """The folders of code that are described as a whole."""
    return sorted({f"{path.split('/')[0]}/" for path in code if "/" in path} & CODE.keys())


def _file(packed: PackedStudy, path: str, name: str, description: str = "") -> Entity:
    kind = TYPES.get(Path(path).suffix) or mimetypes.guess_type(path)[0] or "text/plain"
    return {
        "@id": path,
        "@type": "File",
        "name": name,
        **({"description": description} if description else {}),
        "encodingFormat": kind,
        "contentSize": str(packed.sizes[path]),
    }


def _run_action(packed: PackedStudy, run: DoneRun) -> Entity:
    """What made a run's result."""
    status, reason = run.result["status"], run.result.get("reason")
    made = "CompletedActionStatus" if status == "valid" else "FailedActionStatus"
    spec = next(path for path in run.files if path.endswith("/spec.json"))
    return {
        "@id": f"#run-{run.id}",
        "@type": "CreateAction",
        "name": f"Run {run.id}",
        "description": f"{status}: {reason}" if reason else status,
        "instrument": {"@id": TRAIN},
        "object": _refs([spec, packed.machine_file]),
        "result": _refs(path for path in run.files if path != spec),
        "actionStatus": f"http://schema.org/{made}",
        **_times(run.result),
        **({"error": str(reason or status)} if made == "FailedActionStatus" else {}),
        **({"agent": {"@id": "#author"}} if packed.author else {}),
    }


def _times(result: Mapping[str, Any]) -> Entity:
    return {name: str(result[key]) for name, key in (("startTime", "started"), ("endTime", "ended")) if result.get(key)}


def _workflow_action(packed: PackedStudy) -> Entity:
    """The whole: from the study file to figures and tables."""
    started = sorted(str(run.result["started"]) for run in packed.runs if run.result.get("started"))
    ended = sorted(str(run.result["ended"]) for run in packed.runs if run.result.get("ended"))
    results = [path for run in packed.runs for path in run.files if path.endswith("/result.json")]
    return {
        "@id": "#workflow-run",
        "@type": "CreateAction",
        "name": f"Study {packed.study.name} at scale {packed.study.scale} on {packed.machine}",
        "description": packed.study.question,
        "instrument": {"@id": packed.workflow},
        "object": _refs([packed.study_file, packed.machine_file]),
        "result": _refs([*packed.outputs, *results]),
        **({"startTime": started[0]} if started else {}),
        **({"endTime": ended[-1]} if ended else {}),
        **({"agent": {"@id": "#author"}} if packed.author else {}),
    }
