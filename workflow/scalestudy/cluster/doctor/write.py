"""`scalestudy doctor --write NAME`: a machine file and a profile from the scheduler's and a node's reports.

Values that neither of them has carry a comment that begins with CORRECT. Values are written as JSON, which YAML reads.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from scalestudy.cluster.doctor.facts import SOURCES, WORDS, ClusterFacts, NodeKind
from scalestudy.errors import UserError
from scalestudy.files import read_table, write_text
from scalestudy.spec.hostlist import folded
from scalestudy.spec.step_times import STEP_TIMES

CORRECT = "CORRECT"
MAX_JOBS = 100
FILLING = ("$fill_up", "$round_robin")
"""Rules of Grid Engine by which slots come from several hosts, the better one first."""
WHERE = "machine: {name}\nscale: paper\nsite: profiles/{name}/site.yaml\n"
PROFILE = """\
# Each run as a job of its own, on {system}.
executor: multinode
multinode-site: profiles/{name}/site.yaml
configfile: [profiles/{name}/where.yaml]
jobs: {jobs}
local-cores: 2
latency-wait: 60
logger: [scalestudy]
"""
Line = tuple[str, Any, str]
"""Key, value and the remark for a person."""


def files_of(name: str) -> dict[str, Path]:
    """Where each file lies."""
    folder = Path("profiles", name)
    files = {file: folder / f"{file}.yaml" for file in ("site", "where", "config")}
    return {"machine": Path(f"config/machines/{name}.yaml"), **files}


def to_correct(files: Sequence[Path]) -> list[str]:
    """The lines that a person has to look at, as `file:line: text`."""
    return [
        f"{file}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if f"{CORRECT}:" in line
    ]


def refuse_existing(name: str) -> None:
    """UserError where one of the files is there: a person may have corrected it."""
    if there := [str(file) for file in files_of(name).values() if file.exists()]:
        raise UserError(f"is there already: {', '.join(there)}", f"--write {name}", "choose another name, or move it")


def write_files(name: str, facts: ClusterFacts, report: Mapping[str, Any] | None) -> list[Path]:
    """Write all files, each whole; `report` is that of a node, None as long as none was asked."""
    system = WORDS[facts.system]
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals |= {"name": name, "system": system, "facts": facts, "line": line}
    texts = {
        "machine": templates.get_template("machine.yaml.j2").render(machine_values(facts, report)),
        "site": templates.get_template("site.yaml.j2").render(site_values(facts)),
        "where": WHERE.format(name=name),
        "config": PROFILE.format(name=name, system=system, jobs=min(MAX_JOBS, facts.most_submitted or MAX_JOBS)),
    }
    files = files_of(name)
    for key, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, texts[key])
    return list(files.values())


def line(key: str, value: Any, correct: str = "") -> str:
    """One key of a file, with the remark for a person."""
    return f"{key}: {json.dumps(value, ensure_ascii=False)}" + (f"  # {CORRECT}: {correct}" if correct else "")


def machine_values(facts: ClusterFacts, report: Mapping[str, Any] | None) -> dict[str, Any]:
    """Values for machine.yaml.j2: `known` lines, those `counted` by the scheduler, and limits of several queues."""
    kinds = {queue.name: facts.kind_of(queue.name) for queue in facts.queues}
    # Queues with accelerators, the default one first; then those of CPU nodes, for jobs that use none.
    queues = sorted(facts.queues, key=lambda queue: not (kind := kinds[queue.name]) or not kind.gpus)
    first = queues[0].name if queues else None
    kind, nodes = facts.kind_of(first) or NodeKind(None, None, 0), facts.nodes_of(first)
    counted = _set(
        nodes=len(nodes),
        hosts=folded(node.name for node in nodes),
        devices_per_node=kind.gpus,
        cores_per_node=kind.cores or None,
        memory_gib=int(kind.memory_mib / 102.4) / 10 if kind.memory_mib else None,
    )
    known: list[Line] = [(key, value, "") for key, value in counted.items()]
    known += _device_lines(kind, report)
    limits: dict[str, Any] = {}
    for queue in queues:
        is_of_cpus = kind.gpus and (of_queue := kinds[queue.name]) is not None and not of_queue.gpus
        limits[json.dumps(queue.name)] = _set(
            walltime_limit_h=None if queue.walltime_min is None else queue.walltime_min / 60,
            most_nodes=queue.most_nodes or (len(facts.nodes_of(queue.name)) if len(queues) > 1 else None),
            most_jobs=queue.most_jobs,
            devices_per_node=0 if is_of_cpus else None,
        )
    alone = next(iter(limits.values())) if len(limits) == 1 else {}
    if "walltime_limit_h" in alone:
        known.append(("walltime_limit_h", alone["walltime_limit_h"], ""))
    if of_user := _set(most_jobs=facts.most_submitted, most_nodes=alone.get("most_nodes")):
        known.append(("limits", of_user, ""))
    several = {} if alone else limits
    return {"known": known, "counted": list(counted), "source": SOURCES[facts.system], "queues": several}


def _set(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _device_lines(kind: NodeKind, report: Mapping[str, Any] | None) -> Iterator[Line]:
    """The accelerator: `cpu` where none is counted, or where a node has none for torch and its driver."""
    torch, gpu = (report or {}).get("torch", {}), (report or {}).get("gpu") or {}
    is_cuda = kind.gpus > 0 and (report is None or bool(torch.get("devices") or "error" in torch or gpu.get("devices")))
    why = "" if report is not None else "no node was asked yet; cpu where its GPUs are not meant to be used"
    if report is not None and not torch.get("devices"):
        why = f"{report['host']} shows torch no GPU, though {kind.gpus} are counted: see what the doctor says"
    yield "device", "cuda" if is_cuda else "cpu", why if kind.gpus else ""
    if is_cuda and (name := str(torch.get("device_name") or "")):
        words = name.lower().replace("-", " ").split()
        rows = read_table(STEP_TIMES, ("accelerator",)) if STEP_TIMES.is_file() else []
        yield "device_name", name, ""
        yield "device_memory_gib", torch["memory_gib"], ""
        yield from (("accelerator", one, "") for one in sorted({row["accelerator"] for row in rows}) if one in words)


def site_values(facts: ClusterFacts) -> dict[str, Any]:
    """Values for site.yaml.j2."""
    prefix, only = Path(sys.prefix), facts.queues[0] if len(facts.queues) == 1 else None
    is_conda = (prefix / "conda-meta").is_dir()
    is_venv = not is_conda and sys.prefix != sys.base_prefix
    return {
        "modules": list(filter(None, os.environ.get("LOADEDMODULES", "").split(":"))),
        "conda": sys.prefix if is_conda else None,
        "setup": [f". {shlex.quote(str(prefix))}/bin/activate"] if is_venv else None,
        "queue": only.name if only is not None and not only.default else None,
        "gpu_types": sorted({node.kind.gpu_type for node in facts.nodes if node.kind.gpu_type}),
        **(_environments(facts) if facts.system == "sge" else {}),
    }


def _environments(facts: ClusterFacts) -> dict[str, Any]:
    """Parallel environments of Grid Engine: one for each number of slots on a host, and one that fills hosts."""
    # Of several environments that deal alike, one called mpi comes first.
    known = dict(sorted(facts.environments.items(), key=lambda one: "mpi" not in one[0]))
    dealing: dict[int, str] = {}
    for name, rule in known.items():
        if rule.isdigit() and int(rule):
            dealing.setdefault(int(rule), name)
    fill = next((name for rule in FILLING for name in known if known[name] == rule), None)
    environments = {str(number): name for number, name in sorted(dealing.items())} | ({"any": fill} if fill else {})
    slots = "[-pe {environment} {ranks}] " if dealing else f"-pe {fill} {{ranks}} " if fill else ""
    return {"environments": environments if dealing else {}, "fill": fill, "slots": slots}
