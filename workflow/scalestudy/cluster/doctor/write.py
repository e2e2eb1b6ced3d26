"""`scalestudy doctor --write NAME`: a machine file and a profile from the scheduler's and a node's reports.

Values that neither of them has carry a comment that begins with CORRECT. Values are written as JSON, which YAML reads.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalestudy.cluster.doctor.facts import SOURCES, WORDS, ClusterFacts, NodeKind, QueueFacts
from scalestudy.cluster.doctor.findings import devices
from scalestudy.errors import UserError
from scalestudy.files import read_table, write_text
from scalestudy.spec.hostlist import folded
from scalestudy.spec.step_times import STEP_TIMES

CORRECT = "CORRECT"
HEAD = "# Written by `scalestudy doctor --write {name}` from what {system} says.\n# Lines with CORRECT need a person."
MAX_JOBS = 100
FILLING = ("$fill_up", "$round_robin")
"""Rules of Grid Engine by which slots come from several hosts, the better one first."""
Report = Mapping[str, Any]


def files_of(name: str) -> dict[str, Path]:
    """Where each file lies."""
    names = {"site": "site.yaml", "where": "where.yaml", "profile": "config.yaml"}
    folder = Path("profiles") / name
    return {"machine": Path("config/machines") / f"{name}.yaml", **{key: folder / file for key, file in names.items()}}


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


def write_files(name: str, facts: ClusterFacts, report: Report | None) -> list[Path]:
    """Write all files, each whole; `report` is that of a node, None as long as none was asked."""
    files = files_of(name)
    texts = {
        "machine": machine_text(name, facts, report),
        "site": site_text(name, facts),
        "where": f"machine: {name}\nscale: paper\nsite: profiles/{name}/site.yaml\n",
        "profile": (
            f"# Each run as a job of its own, on {WORDS[facts.system]}.\nexecutor: multinode\n"
            f"multinode-site: profiles/{name}/site.yaml\nconfigfile: [profiles/{name}/where.yaml]\n"
            f"jobs: {min(MAX_JOBS, facts.most_submitted or MAX_JOBS)}\nlocal-cores: 2\nlatency-wait: 60\nlogger: [scalestudy]\n"
        ),
    }
    for key, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, texts[key])
    return list(files.values())


def line(key: str, value: Any, correct: str = "") -> str:
    """One key of a file, with the remark for a person."""
    return f"{key}: {json.dumps(value, ensure_ascii=False)}" + (f"  # {CORRECT}: {correct}" if correct else "")


def machine_text(name: str, facts: ClusterFacts, report: Report | None) -> str:
    """config/machines/NAME.yaml."""
    queues = useful_queues(facts)
    first = queues[0].name if queues else None
    kind = facts.kind_of(first) or NodeKind(None, None, 0)
    node_cores = (report or {}).get("node_cores") or kind.cores
    other = f"the node itself says {node_cores}" if node_cores != kind.cores else ""
    known = {
        "nodes": line("nodes", len(facts.nodes_of(first)) or 1),
        "hosts": hosts_line(facts, first) if facts.nodes else "",
        "devices_per_node": "\n".join(_device_lines(kind, report)),
        "cores_per_node": line("cores_per_node", kind.cores, other) if kind.cores else "",
        "memory_gib": line("memory_gib", int(kind.memory_mib / 102.4) / 10) if kind.memory_mib else "",
    }
    lines = [
        "# yaml-language-server: $schema=../../workflow/schemas/machine.schema.json",
        HEAD.format(name=name, system=WORDS[facts.system]),
        line("description", f"{name}, {len(facts.nodes)} nodes", "site, system, year"),
        *filter(None, known.values()),
        *_limit_lines(facts, queues),
        "sources:",
        f"  {line('description', 'scalestudy doctor --write')}",
        *(f"  {line(key, SOURCES[facts.system])}" for key, text in known.items() if text),
    ]
    return "\n".join(lines) + "\n"


def useful_queues(facts: ClusterFacts) -> list[QueueFacts]:
    """The queues with accelerators, the default one first; then those of CPU nodes, for jobs that use none."""
    kinds = {queue.name: facts.kind_of(queue.name) for queue in facts.queues}
    return sorted(facts.queues, key=lambda queue: not (kind := kinds[queue.name]) or not kind.gpus)


def hosts_line(facts: ClusterFacts, queue: str | None) -> str:
    """The machine file's `hosts`: the nodes of a queue by name, those too that take no job now."""
    return line("hosts", folded(node.name for node in facts.nodes_of(queue)))


def _device_lines(kind: NodeKind, report: Report | None) -> list[str]:
    first, host = line("devices_per_node", kind.gpus), (report or {}).get("host")
    gpu: Mapping[str, Any] = (report or {}).get("gpu") or {}
    seen = devices(report) if report is not None else 0
    if not kind.gpus:
        return [first, line("device", "cpu", f"{host} has {seen} GPUs, and none is counted" if seen else "")]
    if report is None:
        return [first, line("device", "cuda", "no node was asked yet; cpu where its GPUs are not meant to be used")]
    if "error" in report["torch"] or (gpu.get("devices") and not seen):
        return [first, line("device", "cuda", f"torch cannot use the GPUs of {host} yet: see what the doctor says")]
    if not seen:
        why = f"{host} shows torch no GPU, though {kind.gpus} are counted; cuda once it does"
        return [first, line("device", "cpu", why)]
    name = str(report["torch"].get("device_name") or gpu.get("name") or "")
    values = {
        "device": "cuda",
        "device_name": name,
        "device_memory_gib": gpu.get("memory_gib"),
        "accelerator": accelerator(name),
    }
    peak = f"# {CORRECT}: peak_tflops: {{float32: …}} from the vendor's data sheet; the plan expects times by it"
    return [first, *(line(key, value) for key, value in values.items() if value), peak]


def accelerator(device_name: str) -> str | None:
    """The name in step_times.csv of a GPU by its vendor's name; None where there are no step times of it."""
    rows = read_table(STEP_TIMES, ("accelerator",)) if STEP_TIMES.is_file() else []
    words = device_name.lower().replace("-", " ").split()
    return next((name for name in sorted({row["accelerator"] for row in rows}) if name in words), None)


def _limit_lines(facts: ClusterFacts, queues: Sequence[QueueFacts]) -> list[str]:
    lines = []
    alone = queues[0] if len(queues) == 1 else None
    if alone is not None and alone.walltime_min is not None:
        lines.append(line("walltime_limit_h", alone.walltime_min / 60))
    elif not any(queue.walltime_min for queue in queues):
        lines.append(
            f"# {CORRECT}: walltime_limit_h: the scheduler names no limit; a job asks for what it is expected to take"
        )
    if limits := _set({"most_jobs": facts.most_submitted, "most_nodes": alone and alone.most_nodes}):
        lines.append(line("limits", limits))
    if alone is None and queues:
        lines.append(f"queues:  # {CORRECT}: tried in this order; delete those that you may not use")
        has_gpus = any(node.kind.gpus for node in facts.nodes)
    for queue in queues if alone is None else ():
        kind = facts.kind_of(queue.name)
        keys = {
            "walltime_limit_h": None if queue.walltime_min is None else queue.walltime_min / 60,
            "most_nodes": queue.most_nodes or len(facts.nodes_of(queue.name)) or None,
            "most_jobs": queue.most_jobs,
            "devices_per_node": 0 if kind is not None and not kind.gpus and has_gpus else None,
        }
        lines.append(f"  {json.dumps(queue.name)}: {json.dumps(_set(keys))}")
    return lines


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def site_text(name: str, facts: ClusterFacts) -> str:
    """profiles/NAME/site.yaml."""
    queues, modules = (
        useful_queues(facts),
        [module for module in os.environ.get("LOADEDMODULES", "").split(":") if module],
    )
    is_conda = (Path(sys.prefix) / "conda-meta").is_dir()
    account, *others = facts.accounts or [""]
    lines = [
        "# yaml-language-server: $schema=../../workflow/schemas/site.schema.json",
        HEAD.format(name=name, system=WORDS[facts.system]),
        line("modules", modules, "those of the shell that wrote this; jobs need CUDA and MPI") if modules else "",
        line("conda", sys.prefix) if is_conda else "",
        f"# scratch: $TMPDIR  # {CORRECT}: a folder on a node's own disk, where that is not $TMPDIR",
        f"# data_roots: {{image_folder: /data/imagenet}}  # {CORRECT}: data that the site already has",
        "scheduler:",
        f"  kind: {facts.system}",
        "  " + line("account", account, f"or {', '.join(others)}" if others else "") if account else "",
        "  " + line("queue", queues[0].name) if len(queues) == 1 and not queues[0].default else "",
        *(f"  {text}" for text in REQUESTS[facts.system](facts)),
    ]
    if not is_conda and sys.prefix != sys.base_prefix:
        prefix = Path(sys.prefix)
        here = Path(".venv").exists() and prefix.resolve() == Path(".venv").resolve()
        lines.append("  " + line("setup", [f". {'.venv' if here else shlex.quote(str(prefix))}/bin/activate"]))
    return "\n".join(filter(None, lines)) + "\n"


def _slurm_request(facts: ClusterFacts) -> list[str]:
    types = sorted({node.kind.gpu_type for node in facts.nodes if node.kind.gpu_type})
    several = f"request: several types of GPU ({', '.join(types)}): --gres=gpu:TYPE:{{gpus_per_node}}"
    return ["options: [--exclusive]", *([f"# {CORRECT}: {several}"] if len(types) > 1 else [])]


def _pbs_request(facts: ClusterFacts) -> list[str]:
    gpus = f"[:{facts.gpu_resource}={{gpus_per_node}}]" if facts.gpu_resource else ""
    select = f"-l select={{nodes}}:ncpus={{cpus_per_node}}:mpiprocs={{ranks_per_node}}{gpus}[:mem={{mem_mb}}mb]"
    return [line("request", f"{select} -l place=scatter:excl [-l walltime={{walltime}}]")]


def _sge_request(facts: ClusterFacts) -> list[str]:
    # Of several environments that deal alike, one called mpi comes first.
    known = dict(sorted(facts.environments.items(), key=lambda one: "mpi" not in one[0]))
    dealing: dict[int, str] = {}
    for name, rule in known.items():
        if rule.isdigit() and int(rule):
            dealing.setdefault(int(rule), name)
    fill = min(
        (name for name, rule in known.items() if rule in FILLING),
        key=lambda name: FILLING.index(known[name]),
        default=None,
    )
    slots = "[-pe {environment} {ranks}] " if dealing else f"-pe {fill} {{ranks}} " if fill else ""
    gpus = f"[-l {facts.gpu_resource}={{gpus_per_rank}}] " if facts.gpu_resource else ""
    exclusive = f" -l {facts.exclusive_resource}=true" if facts.exclusive_resource else ""
    lines = [line("request", f"{slots}{gpus}[-l h_rt={{runtime_s}}]{exclusive}")]
    if dealing:
        names = {**{str(number): name for number, name in sorted(dealing.items())}, **({"any": fill} if fill else {})}
        lines.append(line("environments", names))
    if fill:
        what = f"`{fill}` deals slots by `{known[fill]}`, so that a job may get fewer nodes than it means"
        lines.append(f"# {CORRECT}: {what}; whole nodes need one that deals a number, that of the ranks on a node")
    elif not dealing:
        there = ", ".join(f"{name} ({rule})" for name, rule in facts.environments.items()) or "none"
        what = f"no parallel environment that takes slots of several hosts was found (qconf -spl: {there})"
        lines.append(f"# {CORRECT}: {what}: whole nodes cannot be requested")
    if facts.gpu_resource:
        per_host = f"-l {facts.gpu_resource}={{gpus_per_node}}"
        lines.append(f"# {CORRECT}: `{facts.gpu_resource}` is taken to count per slot; per host: {per_host}")
    return lines


REQUESTS = {"slurm": _slurm_request, "pbs": _pbs_request, "sge": _sge_request}
