"""Grid Engine: qhost, and qconf about queues, parallel environments, complexes and limits."""

from __future__ import annotations

import re

from scalestudy.cluster.doctor.facts.model import (
    ClusterFacts,
    Commands,
    NodeFacts,
    NodeKind,
    ParallelEnvironment,
    QueueFacts,
    least,
    mebibytes,
    minutes,
    whole,
)

GPU = re.compile(r"gpus?|ngpus|num_gpus?|gpu_count|cuda")
MOST_ASKED = 40
"""Queues and environments that are looked at; each is a command of its own."""


def facts(asked: Commands) -> ClusterFacts:
    """The whole cluster."""
    complexes = [line.split() for line in asked("qconf", "-sc").splitlines() if line[:1].isalpha()]
    gpu = next((row[0] for row in complexes if len(row) >= 6 and GPU.fullmatch(row[0]) and row[5] != "NO"), None)
    exclusive = next((row[0] for row in complexes if len(row) >= 6 and row[3] == "EXCL"), None)
    nodes = _nodes(asked("qhost", *(["-F", gpu] if gpu else [])), gpu)
    queues = {name: _values(asked("qconf", "-sq", name)) for name in asked("qconf", "-sql").split()[:MOST_ASKED]}
    names = dict.fromkeys(name for values in queues.values() for name in _words(values.get("pe_list", "NONE")))
    environments = tuple(
        ParallelEnvironment(name, _values(asked("qconf", "-sp", name)).get("allocation_rule", ""))
        for name in list(names)[:MOST_ASKED]
    )
    most = _values(asked("qconf", "-sconf")).get("max_u_jobs", "0")
    return ClusterFacts(
        "sge",
        nodes,
        tuple(
            QueueFacts(name, walltime_min=minutes(_first(values.get("h_rt", "")), 1 / 60))
            for name, values in queues.items()
        ),
        most_submitted=whole(most) or None,
        environments=environments,
        gpu_resource=gpu,
        exclusive_resource=exclusive,
        notes=tuple(asked.silent),
        sources={"nodes": "qhost", "queues": "qconf -sq", "accounts": "not told by Grid Engine"},
    )


def _nodes(text: str, gpu: str | None) -> tuple[NodeFacts, ...]:
    """The table of qhost; with `-F`, lines about a host's resources follow its own."""
    lines = text.splitlines()
    header = next((words for line in lines if (words := line.split())[:1] == ["HOSTNAME"]), None)
    if header is None:
        return ()
    found: list[tuple[dict[str, str], int]] = []
    for line in lines:
        if line[:1].isspace():
            counted = re.search(rf"\b\w\w:{re.escape(gpu)}=([0-9]{{1,9}})(?:\.0*)?(?![\d.])", line) if gpu else None
            if counted and found:
                found[-1] = found[-1][0], int(counted[1])
        elif not line.startswith(("HOSTNAME", "---", "global")) and len(cells := line.split()) == len(header):
            found.append((dict(zip(header, cells, strict=True)), 0))
    return tuple(_node(row, gpus) for row, gpus in found)


def _node(row: dict[str, str], gpus: int) -> NodeFacts:
    cores = least(whole(row.get(name, "")) for name in ("NCOR", "NCPU"))
    load = row.get("NLOAD", row.get("LOAD", "-"))
    return NodeFacts(row["HOSTNAME"], NodeKind(cores, mebibytes(row.get("MEMTOT", "-")), gpus), load != "-")


def _values(text: str) -> dict[str, str]:
    """`key   value` per line; a value that ends with a backslash continues in the next."""
    pairs = (line.split(None, 1) for line in text.replace("\\\n", " ").splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _words(value: str) -> list[str]:
    """`make mpi,[@gpu=mpi4]` as its names."""
    return [word for word in re.split(r"[\s,\[\]]+", re.sub(r"\[[^\]=]*=", " ", value)) if word and word != "NONE"]


def _first(value: str) -> str:
    """A queue's own value, before those of single hosts."""
    return value.partition(",")[0]
