"""OpenPBS and PBS Pro: pbsnodes, and qstat about queues and server."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

from scalestudy.cluster.doctor.facts.model import (
    ClusterFacts,
    Commands,
    NodeFacts,
    NodeKind,
    QueueFacts,
    least,
    mebibytes,
    minutes,
    whole,
)

OF_A_USER = re.compile(r"\bu:(?:PBS_GENERIC|\w+)=(\d+)")
"""`[u:PBS_GENERIC=30]`: a limit that every user has (PBS Professional administrator's guide, "Limits at queues and server")."""
BAD = ("down", "offline", "unknown", "stale", "maintenance")
GPU = "ngpus"


def facts(asked: Commands) -> ClusterFacts:
    """The whole cluster."""
    nodes = _nodes(asked("pbsnodes", "-a", "-F", "json"))
    queues = _blocks(asked("qstat", "-Qf"), "Queue:")
    server = next(iter(_blocks(asked("qstat", "-Bf"), "Server:").values()), {})
    default = server.get("default_queue")
    found = [_queue(name, values, name == default) for name, values in queues.items() if _is_open(values)]
    notes = []
    if server and server.get("job_history_enable") != "True":
        notes.append(
            "PBS keeps no history of jobs (`job_history_enable`): why a job ended is known only while it is there"
        )
    limits = [server.get("max_queued", ""), *(queues.get(default or "", {}).get("max_queued", ""),)]
    return ClusterFacts(
        "pbs",
        nodes,
        tuple(sorted(found, key=lambda queue: not queue.default)),
        most_submitted=least(_of_a_user(text) for text in limits),
        gpu_resource=GPU if any(node.kind.gpus for node in nodes) else None,
        notes=(*notes, *asked.silent),
        sources={"nodes": "pbsnodes -a", "queues": "qstat -Qf", "accounts": "not told by PBS"},
    )


def _nodes(text: str) -> tuple[NodeFacts, ...]:
    """By host: a host may be several vnodes, whose resources add up."""
    try:
        answer = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        answer = {}
    hosts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, node in _map(answer, "nodes").items():
        if isinstance(node, dict):
            hosts[str(_map(node, "resources_available").get("host", name))].append(node)
    return tuple(_node(host, vnodes) for host, vnodes in hosts.items())


def _map(answer: Any, key: str) -> dict[str, Any]:
    """A map in an answer; empty where there is none."""
    found = answer.get(key) if isinstance(answer, dict) else None
    return found if isinstance(found, dict) else {}


def _node(host: str, vnodes: list[dict[str, Any]]) -> NodeFacts:
    have = [_map(vnode, "resources_available") for vnode in vnodes]
    memory = sum(mebibytes(str(each.get("mem", "0"))) or 0 for each in have)
    cores = sum(whole(str(each.get("ncpus"))) or 0 for each in have)
    up = not any(word in str(vnode.get("state", "")) for vnode in vnodes for word in BAD)
    queues = tuple(dict.fromkeys(str(vnode["queue"]) for vnode in vnodes if vnode.get("queue")))
    kind = NodeKind(cores or None, memory or None, sum(whole(str(each.get(GPU))) or 0 for each in have))
    return NodeFacts(host, kind, up, queues)


def _blocks(text: str, head: str) -> dict[str, dict[str, str]]:
    """`Queue: NAME`, and `    key = value` below it; a long value continues in lines that begin with a tab."""
    blocks: dict[str, dict[str, str]] = {}
    values: dict[str, str] = {}
    for line in text.replace("\n\t", "").splitlines():
        if line.startswith(head):
            values = blocks.setdefault(line.removeprefix(head).strip(), {})
        elif " = " in line:
            key, _, value = line.strip().partition(" = ")
            values[key] = value.strip()
    return blocks


def _is_open(values: dict[str, str]) -> bool:
    wanted = {"queue_type": "Execution", "enabled": "True", "started": "True"}
    return values.get("from_route_only") != "True" and all(
        values.get(key, word) == word for key, word in wanted.items()
    )


def _queue(name: str, values: dict[str, str], default: bool) -> QueueFacts:
    return QueueFacts(
        name,
        default,
        minutes(values.get("resources_max.walltime", ""), 1 / 60),
        whole(values.get("resources_max.nodect", "")),
        _of_a_user(values.get("max_run", "")),
    )


def _of_a_user(text: str) -> int | None:
    return least(whole(number) for number in OF_A_USER.findall(text))
