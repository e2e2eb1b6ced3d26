"""Slurm: scontrol show node, partition and config; sacctmgr where there is accounting."""

from __future__ import annotations

import os
import pwd
import re

from scalestudy.cluster.doctor.facts.model import (
    ClusterFacts,
    Commands,
    NodeFacts,
    NodeKind,
    QueueFacts,
    least,
    minutes,
    whole,
)

FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)")
GPUS = re.compile(r"\bgpu(?::([A-Za-z_][\w.-]*))?:([0-9]{1,9})")
BAD = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "*")
"""Parts of a node's state with which it takes no job: scontrol(1), sinfo(1) "NODE STATE CODES"."""


def facts(asked: Commands) -> ClusterFacts:
    """The whole cluster."""
    nodes = tuple(_node(found) for found in _named(asked("scontrol", "-o", "show", "node"), "NodeName"))
    partitions = _named(asked("scontrol", "-o", "show", "partition"), "PartitionName")
    config = asked("scontrol", "show", "config")
    accounts, submitted, running, notes = _accounting(asked, config, partitions)
    queues = [
        _queue(found, running)
        for found in partitions
        if found.get("State", "UP") == "UP" and found.get("RootOnly") != "YES"
    ]
    return ClusterFacts(
        "slurm",
        nodes,
        tuple(sorted(queues, key=lambda queue: not queue.default)),
        accounts,
        submitted,
        notes=(*notes, *asked.silent),
        sources={"nodes": "scontrol show node", "queues": "scontrol show partition", "accounts": "sacctmgr show assoc"},
    )


def fields(line: str) -> dict[str, str]:
    """`Name=value …` of one line; of a value with blanks the first word."""
    return dict(FIELD.findall(line))


def _named(text: str, key: str) -> list[dict[str, str]]:
    """The lines that have a value of `key`, each as its fields."""
    return [found for line in text.splitlines() if (found := fields(line)).get(key)]


def _node(found: dict[str, str]) -> NodeFacts:
    gpus = GPUS.findall(found.get("Gres", ""))
    sockets, cores = whole(found.get("Sockets", "")), whole(found.get("CoresPerSocket", ""))
    physical = sockets * cores if sockets is not None and cores is not None else whole(found.get("CPUTot", ""))
    kind = NodeKind(
        physical,
        whole(found.get("RealMemory", "")),
        sum(int(count) for _, count in gpus),
        next((name for name, _ in gpus if name), None),
    )
    up = not any(word in found.get("State", "") for word in BAD)
    return NodeFacts(found["NodeName"], kind, up, tuple(filter(None, found.get("Partitions", "").split(","))))


def _queue(found: dict[str, str], running: int | None) -> QueueFacts:
    return QueueFacts(
        found["PartitionName"],
        found.get("Default") == "YES",
        minutes(found.get("MaxTime", ""), 1.0),
        whole(found.get("MaxNodes", "")),
        running,
        found.get("OverSubscribe", "") == "EXCLUSIVE",
    )


def _accounting(
    asked: Commands, config: str, partitions: list[dict[str, str]]
) -> tuple[tuple[str, ...], int | None, int | None, list[str]]:
    """Accounts of this user, jobs that it may submit and run, and what is to be said."""
    if not config:
        return (), None, None, []
    kind = re.search(r"^AccountingStorageType\s*=\s*(\S+)", config, re.MULTILINE)
    if kind is None or "none" in kind[1].lower() or kind[1] == "(null)":
        age = re.search(r"^MinJobAge\s*=\s*(\d+)", config, re.MULTILINE)
        said = f"for {age[1]} s after it" if age else "shortly after it"
        return (), None, None, [f"Slurm keeps no accounts here: why a job ended is known only {said}"]
    user = pwd.getpwuid(os.getuid()).pw_name
    columns = "format=account,maxsubmit,maxjobs,defaultqos"
    rows = _table(asked("sacctmgr", "-nP", "show", "assoc", "where", f"user={user}", columns), 4)
    wanted = {row[3] for row in rows} | {found.get("QoS", "N/A") for found in partitions}
    qos = _table(asked("sacctmgr", "-nP", "show", "qos", "format=name,maxsubmitpu,maxjobspu"), 3)
    limits = [(row[1], row[2]) for row in rows] + [(row[1], row[2]) for row in qos if row[0] in wanted]
    submitted = least(whole(most) for most, _ in limits)
    running = least(whole(most) for _, most in limits)
    notes = [] if rows else [f"Slurm's accounts do not know {user}: jobs may be refused"]
    return tuple(dict.fromkeys(row[0] for row in rows if row[0])), submitted, running, notes


def _table(text: str, columns: int) -> list[list[str]]:
    rows = [line.split("|") for line in text.splitlines() if line.strip()]
    return [row for row in rows if len(row) == columns]
