"""`scalestudy doctor --write NAME`: a machine file and a profile from what the scheduler and a node say.

What nobody can know from there is a comment that begins with CORRECT.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalestudy.cluster.compare_site import WORDS
from scalestudy.cluster.facts.model import ClusterFacts, NodeKind, ParallelEnvironment, QueueFacts
from scalestudy.cluster.findings import devices
from scalestudy.errors import UserError
from scalestudy.files import write_text

CORRECT = "CORRECT"
MOST_JOBS = 100
STEP_TIMES = Path("config/reference/step_times.csv")
HEAD = "# Written by `scalestudy doctor --write {name}` from what {system} says{node}.\n# Lines with CORRECT need a person."


def files_of(name: str) -> dict[str, Path]:
    """Where what is written lies, by what it is."""
    folder = Path("profiles") / name
    return {
        "machine": Path("config/machines") / f"{name}.yaml",
        "site": folder / "site.yaml",
        "where": folder / "where.yaml",
        "profile": folder / "config.yaml",
    }


def to_correct(files: Sequence[Path]) -> list[str]:
    """The lines that a person has to look at, as `file:line: text`."""
    lines = [(file, number, line) for file in files for number, line in enumerate(file.read_text().splitlines(), 1)]
    return [f"{file}:{number}: {line.strip()}" for file, number, line in lines if f"{CORRECT}:" in line]


def refuse_existing(name: str) -> None:
    """UserError where one of the files is there: somebody may have corrected it."""
    if there := [str(file) for file in files_of(name).values() if file.exists()]:
        raise UserError(f"is there already: {', '.join(there)}", f"--write {name}", "choose another name, or move it")


def write_files(name: str, facts: ClusterFacts, report: dict[str, Any] | None) -> list[Path]:
    """Write all files, each whole; `report` is what a node says of itself, None as long as none was asked."""
    files = files_of(name)
    texts = {
        "machine": machine_text(name, facts, report),
        "site": site_text(name, facts),
        "where": f"machine: {name}\nsite: profiles/{name}/site.yaml\n",
        "profile": profile_text(name, facts),
    }
    for key, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, texts[key])
    return list(files.values())


def machine_text(name: str, facts: ClusterFacts, report: dict[str, Any] | None) -> str:
    """config/machines/NAME.yaml."""
    queues = useful_queues(facts)
    first = queues[0].name if queues else None
    kind = facts.kind_of(first) or NodeKind(None, None, 0)
    source = facts.sources
    node = f" and {report['host']}" if report is not None else ""
    lines = [
        "# yaml-language-server: $schema=../../workflow/schemas/machine.schema.json",
        HEAD.format(name=name, system=WORDS[facts.system], node=node),
        f"description: {_text(f'{name}, {len(facts.nodes)} nodes')}  # {CORRECT}: site, system, year",
        f"nodes: {len(facts.nodes_of(first)) or 1}",
        *_device_lines(kind, report),
        *(
            [f"cores_per_node: {kind.cores}{_other(kind.cores, (report or {}).get('node_cores'))}"]
            if kind.cores
            else []
        ),
        *([f"memory_gib: {int(kind.memory_mib / 1024 * 10) / 10:g}"] if kind.memory_mib else []),
        *_limit_lines(facts, queues),
        "sources:",
        f"  description: {_text('scalestudy doctor --write')}",
        f"  nodes: {_text(source['nodes'])}",
        f"  devices_per_node: {_text(source['nodes'])}",
        *([f"  cores_per_node: {_text(source['nodes'])}"] if kind.cores else []),
        *([f"  memory_gib: {_text(source['nodes'])}"] if kind.memory_mib else []),
    ]
    return "\n".join(lines) + "\n"


def useful_queues(facts: ClusterFacts) -> list[QueueFacts]:
    """The queues whose nodes have accelerators, the default one first; then those of CPU nodes, for jobs that use none."""

    def has_none(queue: QueueFacts) -> bool:
        kind = facts.kind_of(queue.name)
        return kind is None or not kind.gpus

    return sorted(facts.queues, key=has_none)


def _device_lines(kind: NodeKind, report: dict[str, Any] | None) -> list[str]:
    lines = [f"devices_per_node: {kind.gpus}"]
    if not kind.gpus:
        seen = devices(report) if report is not None else 0
        more = f"  # {CORRECT}: {report['host']} has {seen} GPUs, and none is counted" if report and seen else ""
        return [*lines, f"device: cpu{more}"]
    if report is None:
        return [
            *lines,
            f"device: cuda  # {CORRECT}: no node was asked yet; cpu where its GPUs are not meant to be used",
        ]
    gpu = report.get("gpu") or {}
    if "error" in report["torch"] or (gpu.get("devices") and not devices(report)):
        return [
            *lines,
            f"device: cuda  # {CORRECT}: torch cannot use the GPUs of {report['host']} yet: see what the doctor says",
        ]
    if not devices(report):
        why = f"{report['host']} shows torch no GPU, though {kind.gpus} are counted; cuda once it does"
        return [*lines, f"device: cpu  # {CORRECT}: {why}"]
    name, memory = str(report["torch"].get("device_name") or gpu.get("name") or ""), gpu.get("memory_gib")
    lines += ["device: cuda", f"device_name: {_text(name)}"]
    lines += [f"device_memory_gib: {memory}"] if memory else []
    known = accelerator(name)
    lines += [f"accelerator: {known}"] if known else []
    return [
        *lines,
        f"# {CORRECT}: peak_tflops: {{float32: …}} from the vendor's data sheet; the plan expects times by it",
    ]


def accelerator(device_name: str) -> str | None:
    """The name in step_times.csv of a GPU by its vendor's name; None where there are no step times of it."""
    if not STEP_TIMES.is_file():
        return None
    with open(STEP_TIMES, newline="", encoding="utf-8") as stream:
        names = {row["accelerator"] for row in csv.DictReader(stream)}
    words = device_name.lower().replace("-", " ").split()
    return next((name for name in sorted(names) if name in words), None)


def _limit_lines(facts: ClusterFacts, queues: Sequence[QueueFacts]) -> list[str]:
    lines = []
    if len(queues) == 1 and (limit := queues[0].walltime_min) is not None:
        lines.append(f"walltime_limit_h: {limit / 60:g}")
    elif not any(queue.walltime_min for queue in queues):
        lines.append(
            f"# {CORRECT}: walltime_limit_h: the scheduler names no limit; a job asks for what it is expected to take"
        )
    limits = {"most_jobs": facts.most_submitted}
    if len(queues) == 1:
        limits["most_nodes"] = queues[0].most_nodes
    if known := {key: value for key, value in limits.items() if value is not None}:
        lines.append(f"limits: {_map(known)}")
    if len(queues) > 1:
        lines.append(f"queues:  # {CORRECT}: tried in this order; delete those that you may not use")
        for queue in queues:
            kind = facts.kind_of(queue.name)
            keys = {
                "walltime_limit_h": None if queue.walltime_min is None else float(f"{queue.walltime_min / 60:g}"),
                "most_nodes": queue.most_nodes or (len(facts.nodes_of(queue.name)) or None),
                "most_jobs": queue.most_jobs,
                "devices_per_node": 0
                if kind is not None and not kind.gpus and any(n.kind.gpus for n in facts.nodes)
                else None,
            }
            lines.append(
                f"  {_text(queue.name)}: {_map({key: value for key, value in keys.items() if value is not None})}"
            )
    return lines


def site_text(name: str, facts: ClusterFacts) -> str:
    """profiles/NAME/site.yaml."""
    lines = [
        "# yaml-language-server: $schema=../../workflow/schemas/site.schema.json",
        HEAD.format(name=name, system=WORDS[facts.system], node=""),
        *_software_lines(),
        f"# internet: false  # {CORRECT}: where nodes reach no address outside",
        f"# scratch: $TMPDIR  # {CORRECT}: a folder on a node's own disk, where that is not $TMPDIR",
        f"# data_roots: {{image_folder: /data/imagenet}}  # {CORRECT}: data that the site already has",
        "scheduler:",
        f"  kind: {facts.system}",
    ]
    if len(facts.accounts) == 1:
        lines.append(f"  account: {_text(facts.accounts[0])}")
    elif facts.accounts:
        lines.append(f"  account: {_text(facts.accounts[0])}  # {CORRECT}: or {', '.join(facts.accounts[1:])}")
    queues = useful_queues(facts)
    if len(queues) == 1 and not queues[0].default:
        lines.append(f"  queue: {_text(queues[0].name)}")
    lines += _request_lines(facts)
    if setup := _setup():
        lines += ["  setup:", f"    - {_text(setup)}"]
    return "\n".join(lines) + "\n"


def _software_lines() -> list[str]:
    lines = []
    if loaded := [module for module in os.environ.get("LOADEDMODULES", "").split(":") if module]:
        words = ", ".join(map(_text, loaded))
        lines.append(f"modules: [{words}]  # {CORRECT}: those of the shell that wrote this; jobs need CUDA and MPI")
    if _in_conda():
        lines.append(f"conda: {_text(sys.prefix)}")
    return lines


def _in_conda() -> bool:
    return (Path(sys.prefix) / "conda-meta").is_dir()


def _setup() -> str | None:
    """What brings this environment to a job; None where the job needs nothing."""
    if _in_conda() or sys.prefix == sys.base_prefix:
        return None
    prefix = Path(sys.prefix)
    if Path(".venv").exists() and prefix.resolve() == Path(".venv").resolve():
        return ". .venv/bin/activate"
    return f". {shlex.quote(str(prefix))}/bin/activate"


def _request_lines(facts: ClusterFacts) -> list[str]:
    if facts.system == "slurm":
        types = {node.kind.gpu_type for node in facts.nodes if node.kind.gpu_type}
        lines = ["  options: [--exclusive]"]
        if len(types) > 1:
            lines.append(
                f"  # {CORRECT}: request: several types of GPU ({', '.join(sorted(types))}): --gres=gpu:TYPE:{{gpus_per_node}}"
            )
        return lines
    if facts.system == "pbs":
        gpus = f"[:{facts.gpu_resource}={{gpus_per_node}}]" if facts.gpu_resource else ""
        return [
            f'  request: "-l select={{nodes}}:ncpus={{cpus_per_node}}:mpiprocs={{ranks_per_node}}{gpus}[:mem={{mem_mb}}mb] '
            '-l place=scatter:excl [-l walltime={walltime}]"'
        ]  # fmt: skip
    return _request_of_sge(facts)


def _request_of_sge(facts: ClusterFacts) -> list[str]:
    chosen = chosen_environment(facts)
    parts = [f"-pe {chosen.name} {{ranks}}"] if chosen is not None else []
    parts += [f"[-l {facts.gpu_resource}={{gpus_per_rank}}]"] if facts.gpu_resource else []
    parts += ["[-l h_rt={runtime_s}]", *([f"-l {facts.exclusive_resource}=true"] if facts.exclusive_resource else [])]
    lines = [f'  request: "{" ".join(parts)}"']
    if chosen is None:
        lines.append(f"  # {CORRECT}: no parallel environment was found (qconf -spl): whole nodes cannot be asked for")
    else:
        others = ", ".join(f"{each.name} ({each.rule})" for each in facts.environments if each is not chosen)
        lines.append(
            f"  # {CORRECT}: `{chosen.name}` deals slots by `{chosen.rule}`; whole nodes need a number, that of the ranks on a node"
            + (f". Others: {others}" if others else "")
        )
    if facts.gpu_resource:
        lines.append(
            f"  # {CORRECT}: `{facts.gpu_resource}` is taken to count per slot; per host: -l {facts.gpu_resource}={{gpus_per_node}}"
        )
    return lines


def chosen_environment(facts: ClusterFacts) -> ParallelEnvironment | None:
    """The parallel environment with as many slots on a node as that has GPUs; else with a number; else one called mpi."""
    kind = facts.kind_of(None)
    gpus = str(kind.gpus) if kind is not None else ""

    def order(each: ParallelEnvironment) -> tuple[bool, bool, bool]:
        return each.rule != gpus, not each.rule.isdigit(), "mpi" not in each.name

    return min(facts.environments, key=order, default=None)


def profile_text(name: str, facts: ClusterFacts) -> str:
    """profiles/NAME/config.yaml."""
    jobs = min(MOST_JOBS, facts.most_submitted or MOST_JOBS)
    return "\n".join(
        [
            f"# Each run as a job of its own, on {WORDS[facts.system]}.",
            "executor: scalestudy",
            f"scalestudy-site: profiles/{name}/site.yaml",
            f"configfile: [profiles/{name}/where.yaml]",
            f"jobs: {jobs}",
            "local-cores: 2",
            "latency-wait: 60",
            "",
        ]
    )


def _other(scheduler: int | None, node: int | None) -> str:
    """A comment where the node itself says another number."""
    if scheduler is None or node is None or scheduler == node:
        return ""
    return f"  # {CORRECT}: the node itself says {node}"


def _map(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value:g}" for key, value in values.items()) + "}"


def _text(text: str) -> str:
    """Text as a YAML value: quoted as JSON does, which YAML reads."""
    return json.dumps(text, ensure_ascii=False)
