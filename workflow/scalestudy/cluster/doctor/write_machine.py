"""A machine file from what the scheduler and a node say. What nobody can know from there is a comment that begins with CORRECT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from scalestudy.cluster.doctor.compare_site import WORDS
from scalestudy.cluster.doctor.facts.model import ClusterFacts, NodeKind, QueueFacts
from scalestudy.cluster.doctor.findings import devices
from scalestudy.files import read_table
from scalestudy.spec.hostlist import folded
from scalestudy.spec.step_times import STEP_TIMES

CORRECT = "CORRECT"
HEAD = "# Written by `scalestudy doctor --write {name}` from what {system} says{node}.\n# Lines with CORRECT need a person."


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
        f"description: {quoted(f'{name}, {len(facts.nodes)} nodes')}  # {CORRECT}: site, system, year",
        f"nodes: {len(facts.nodes_of(first)) or 1}",
        *([hosts_line(facts, first)] if facts.nodes else []),
        *_device_lines(kind, report),
        *(
            [f"cores_per_node: {kind.cores}{_other(kind.cores, (report or {}).get('node_cores'))}"]
            if kind.cores
            else []
        ),
        *([f"memory_gib: {int(kind.memory_mib / 1024 * 10) / 10:g}"] if kind.memory_mib else []),
        *_limit_lines(facts, queues),
        "sources:",
        f"  description: {quoted('scalestudy doctor --write')}",
        f"  nodes: {quoted(source['nodes'])}",
        *([f"  hosts: {quoted(source['nodes'])}"] if facts.nodes else []),
        f"  devices_per_node: {quoted(source['nodes'])}",
        *([f"  cores_per_node: {quoted(source['nodes'])}"] if kind.cores else []),
        *([f"  memory_gib: {quoted(source['nodes'])}"] if kind.memory_mib else []),
    ]
    return "\n".join(lines) + "\n"


def useful_queues(facts: ClusterFacts) -> list[QueueFacts]:
    """The queues whose nodes have accelerators, the default one first; then those of CPU nodes, for jobs that use none."""

    def has_none(queue: QueueFacts) -> bool:
        kind = facts.kind_of(queue.name)
        return kind is None or not kind.gpus

    return sorted(facts.queues, key=has_none)


def hosts_line(facts: ClusterFacts, queue: str | None) -> str:
    """The machine file's `hosts`: the nodes of a queue by name, those too that take no job now."""
    return f"hosts: [{', '.join(map(quoted, folded(node.name for node in facts.nodes_of(queue))))}]"


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
    lines += ["device: cuda", f"device_name: {quoted(name)}"]
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
    names = {row["accelerator"] for row in read_table(STEP_TIMES, ("accelerator",))}
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
                f"  {quoted(queue.name)}: {_map({key: value for key, value in keys.items() if value is not None})}"
            )
    return lines


def _other(scheduler: int | None, node: int | None) -> str:
    """A comment where the node itself says another number."""
    if scheduler is None or node is None or scheduler == node:
        return ""
    return f"  # {CORRECT}: the node itself says {node}"


def _map(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value:g}" for key, value in values.items()) + "}"


def quoted(text: str) -> str:
    """Text as a YAML value: quoted as JSON does, which YAML reads."""
    return json.dumps(text, ensure_ascii=False)
