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
from scalestudy.spec.study import Study

CRATE = "https://w3id.org/ro/crate/1.1"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
TRAIN = "#scalestudy-train"
LICENSES = "https://spdx.org/licenses/"
OUR_LICENSE = f"{LICENSES}Apache-2.0"
STATUS = "http://schema.org/{}ActionStatus"
TYPES = {".parquet": "application/vnd.apache.parquet", ".md": "text/markdown", ".yaml": "application/yaml"}
CODE = {
    "workflow/": "The rules and the Python package that they call",
    "envs/": "Software environments with pinned versions",
    "profiles/": "Snakemake's profiles",
}
Entity = dict[str, Any]
Results = Mapping[str, tuple[Mapping[str, Any], Sequence[str]]]
"""By run its result, and the paths of its files, the specification first."""


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
    workflow, inputs = code[0], code[1:3]
    files = {folder: _entity(folder, "Dataset", name=folder, description=CODE[folder]) for folder in folders_of(code)}
    for path in (*code[1:], *outputs, *(path for _, paths in runs.values() for path in paths)):
        if path in outputs or not path.startswith(tuple(CODE)):
            kind = TYPES.get(Path(path).suffix) or mimetypes.guess_type(path)[0] or "text/plain"
            about = _refs(["./"]) if path == "README.md" else None
            files[path] = _entity(path, "File", name=path, encodingFormat=kind, contentSize=_size(path), about=about)
    agent = _refs(["#author"]) if author else None
    actions = [_action(run, *of_run, inputs[1], agent) for run, of_run in runs.items()]
    started, ended = ([str(of[key]) for of, _ in runs.values() if of.get(key)] for key in ("started", "ended"))
    results = [path for _, paths in runs.values() for path in paths if path.endswith("/result.json")]
    license_, software = f"{LICENSES}{spdx}", ["File", "SoftwareSourceCode", "ComputationalWorkflow"]
    graph = [
        _entity(
            "ro-crate-metadata.json", "CreativeWork", about=_refs(["./"]), conformsTo=_refs([CRATE, [*PROFILES][-1]])
        ),
        _entity(
            "./",
            "Dataset",
            name=f"{study.title}: measured on {machine}, scale {study.scale}",
            description=f"{study.question} {len(runs)} runs of the study `{study.name}` with specifications, results, "
            "figures and tables, and the workflow that made them.",
            datePublished=datetime.now().astimezone().isoformat(timespec="seconds"),
            license=_refs([license_]),
            keywords="distributed training, benchmark",
            conformsTo=_refs(PROFILES),
            mainEntity=_refs([workflow]),
            hasPart=_refs([workflow, *files]),
            mentions=_refs(["#workflow-run", *(each["@id"] for each in actions)]),
            author=agent,
        ),
        *(_entity(at, "CreativeWork", name=at.removeprefix(LICENSES), url=at) for at in {license_, OUR_LICENSE}),
        *(_entity(at, "CreativeWork", name=name, version=at.rpartition("/")[2]) for at, name in PROFILES.items()),
        *([_entity("#author", "Person", name=author)] if author else []),
        _entity(
            workflow,
            software,
            name="scalestudy",
            version=__version__,
            license=_refs([OUR_LICENSE]),
            description="From one YAML file per study to every table and figure of a distributed-training evaluation",
            programmingLanguage=_refs([LANGUAGE]),
            hasPart=_refs([TRAIN]),
            contentSize=_size(workflow),
        ),
        _entity(
            LANGUAGE,
            "ComputerLanguage",
            name="Snakemake",
            url="https://snakemake.github.io",
            version=version("snakemake"),
        ),
        _entity(TRAIN, "SoftwareApplication", name="scalestudy train", softwareVersion=__version__),
        *files.values(),
        _entity(
            "#workflow-run",
            "CreateAction",
            name=f"Study {study.name} at scale {study.scale} on {machine}",
            description=study.question,
            instrument=_refs([workflow]),
            object=_refs(inputs),
            result=_refs([*outputs, *results]),
            startTime=min(started, default=None),
            endTime=max(ended, default=None),
            agent=agent,
        ),
        *actions,
    ]
    return {"@context": f"{CRATE}/context", "@graph": graph}


def _action(run: str, result: Mapping[str, Any], paths: Sequence[str], machine: str, agent: Any) -> Entity:
    """The making of a run's result, from its specification and the file of its machine."""
    status, reason = result["status"], result.get("reason")
    return _entity(
        f"#run-{run}",
        "CreateAction",
        name=f"Run {run}",
        description=f"{status}: {reason}" if reason else status,
        instrument=_refs([TRAIN]),
        object=_refs([paths[0], machine]),
        result=_refs(paths[1:]),
        startTime=result.get("started"),
        endTime=result.get("ended"),
        actionStatus=STATUS.format("Completed" if status == "valid" else "Failed"),
        error=None if status == "valid" else str(reason or status),
        agent=agent,
    )


def _entity(at: str, kind: str | list[str], **more: Any) -> Entity:
    return {"@id": at, "@type": kind, **{key: value for key, value in more.items() if value is not None}}


def _refs(ids: Iterable[str]) -> Entity | list[Entity]:
    """References; one stands alone, as RO-Crate has it."""
    found = [{"@id": each} for each in dict.fromkeys(ids)]
    return found[0] if len(found) == 1 else found


def _size(path: str) -> str:
    return str(Path(path).stat().st_size)


def folders_of(code: Iterable[str]) -> list[str]:
    """The folders of code that are described as a whole."""
    return sorted({f"{path.split('/')[0]}/" for path in code if "/" in path} & CODE.keys())
