"""A cluster as its batch system describes it: nodes, queues and their limits. A reader per system; nothing is submitted."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from snakemake_executor_plugin_multinode.schedulers import NoAnswer
from snakemake_executor_plugin_multinode.schedulers.command import run_command
from snakemake_executor_plugin_multinode.schedulers.scheduler import Run, whole

QUERY_S = 60.0
MAX_ASKED = 40
"""Queues of Grid Engine that are looked at; each is a command of its own."""


@dataclass(frozen=True)
class NodeKind:
    """Nodes that are alike: physical cores, MiB, GPUs."""

    cores: int | None
    memory_mib: int | None
    gpus: int


@dataclass(frozen=True)
class NodeFacts:
    """One node."""

    name: str
    kind: NodeKind
    queues: tuple[str, ...] = ()


@dataclass(frozen=True)
class QueueFacts:
    """One queue or partition that is open to users; None: no limit."""

    name: str
    default: bool = False
    walltime_min: float | None = None
    most_nodes: int | None = None
    """Nodes of one job."""


@dataclass(frozen=True)
class ClusterFacts:
    """A whole cluster, as its scheduler describes it to this user."""

    system: str
    """`slurm`, `pbs` or `sge`."""
    nodes: tuple[NodeFacts, ...] = ()
    queues: tuple[QueueFacts, ...] = ()
    """The default one first."""
    notes: tuple[str, ...] = ()
    """Sentences about what is missing, or is good to know."""

    def nodes_of(self, queue: str | None) -> tuple[NodeFacts, ...]:
        """The nodes of a queue; all where the system does not have them by queue, or no queue is named."""
        queue_nodes = tuple(node for node in self.nodes if queue in node.queues)
        return queue_nodes or self.nodes

    def queue(self, name: str | None) -> QueueFacts | None:
        """The queue of that name, or without a name the default one; None where there is none."""
        return next((queue for queue in self.queues if (queue.default if name is None else queue.name == name)), None)


Ask = Callable[..., str]
"""Output of a command, whose words are the arguments; empty where it fails."""


def facts_of(kind: str, run: Run = run_command, on: Sequence[str] = ()) -> ClusterFacts:
    """The cluster of the batch system of this kind. A command without an answer becomes a note.

    `on` are the words of a command that name the cluster.
    """
    silent: list[str] = []

    def ask(*command: str) -> str:
        try:
            answer = run([command[0], *on, *command[1:]], QUERY_S)
        except NoAnswer as error:
            silent.append(f"`{' '.join(command)}` gave no answer: {error}")
            return ""
        if answer.code != 0:
            silent.append(f"`{' '.join(command)}` ended with status {answer.code}: {answer.words}")
        return answer.out if answer.code == 0 else ""

    nodes, queues, notes = {"slurm": slurm, "pbs": pbs, "sge": sge}[kind](ask)
    queues.sort(key=lambda queue: not queue.default)
    return ClusterFacts(kind, tuple(nodes), tuple(queues), (*notes, *silent))


Found = tuple[list[NodeFacts], list[QueueFacts], list[str]]
"""Nodes, queues, and notes."""


def minutes(text: str, plain_min: float) -> float | None:
    """A time such as `1-00:00:00`, `24:00:00`, or a plain number of `plain_min` minutes each; None where unlimited."""
    match = re.fullmatch(r"(?:([0-9]{1,9})-)?(?:([0-9]{1,9}):)?([0-9]{1,9})(?::([0-9]{1,9}))?", text.strip())
    if match is None:
        return None
    if match[0] == match[3]:
        return int(match[0]) * plain_min
    days, hours, middle, seconds = (int(part or 0) for part in match.groups())
    return 60.0 * (24 * days + hours) + middle + seconds / 60


def mebibytes(text: str) -> int | None:
    """A size such as `4000M`, `395gb`, `196743980kb`, `15.6G`, MiB; None where there is none."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{0,18})?)\s*([kmgt]?)(i?b|w)?", text.strip().lower())
    factor = {"": 2**-20, "k": 2**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}
    return None if match is None else int(float(match[1]) * factor[match[2]])


def least(numbers: Iterable[int | None]) -> int | None:
    """The smallest that is known."""
    return min((number for number in numbers if number is not None), default=None)


FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)")
"""`Name=value` of scontrol; of a value with blanks the first word."""
GPUS = re.compile(r"gpu(?::[\w.-]+(?=:\d)|:[\w.-]*[A-Za-z][\w.-]*)?(?::(?P<count>\d{1,9}))?")
"""`gpu:2`, `gpu:a100:2` and `gpu:a100` of scontrol."""
ASIDE = re.compile(r"\([^)]*\)|:no_consume")
"""In a list of generic resources, what does not count them: sockets, `(S:0-1)` (slurm.conf(5), gres.conf(5))."""


def slurm(ask: Ask) -> Found:
    """Slurm: scontrol show node and partition."""

    def lines(what: str, key: str) -> list[dict[str, str]]:
        records = (dict(FIELD.findall(line)) for line in ask("scontrol", "-o", "show", what).splitlines())
        return [fields for fields in records if fields.get(key)]

    nodes = []
    for fields in lines("node", "NodeName"):
        of = tuple(filter(None, fields.get("Partitions", "").split(",")))
        nodes.append(NodeFacts(fields["NodeName"], _slurm_kind(fields), of))
    queues = [
        QueueFacts(
            fields["PartitionName"],
            fields.get("Default") == "YES",
            minutes(fields.get("MaxTime", ""), 1.0),
            whole(fields.get("MaxNodes", "")),
        )
        for fields in lines("partition", "PartitionName")
        if fields.get("State", "UP") == "UP" and fields.get("RootOnly") != "YES"
    ]
    return nodes, queues, []


def _slurm_kind(fields: Mapping[str, str]) -> NodeKind:
    """What a job may have of a node: without the cores and the memory that Slurm keeps for the system."""
    number = {name: whole(text) for name, text in fields.items()}
    sockets, cores = number.get("Sockets"), number.get("CoresPerSocket")
    total_cores = number.get("CPUTot") if sockets is None or cores is None else sockets * cores
    given = number.get("CPUEfctv")  # threads, where Slurm's CPUs are threads
    per_core = max(1, (number.get("CPUTot") or 0) // (total_cores or 1))
    cores = least([total_cores, None if given is None else given // per_core])
    memory = number.get("RealMemory")
    entries = map(GPUS.fullmatch, ASIDE.sub("", fields.get("Gres", "")).split(","))
    gpus = sum(int(entry["count"] or 1) for entry in entries if entry is not None)
    return NodeKind(cores, None if memory is None else memory - (number.get("MemSpecLimit") or 0), gpus)


OPEN = {"enabled": "True", "started": "True"}


def pbs(ask: Ask) -> Found:
    """OpenPBS and PBS Pro: pbsnodes, and qstat about queues and server."""
    notes = []
    try:
        answer = json.loads(ask("pbsnodes", "-a", "-F", "json") or "{}")
    except (ValueError, RecursionError) as error:
        answer = {}
        why = "PBS writes a comment with quotes in it so; have that comment changed"
        notes.append(f"the answer of `pbsnodes -a -F json` is no JSON ({error}): {why}")
    hosts: dict[str, list[dict[str, Any]]] = defaultdict(list)  # a host may be several vnodes
    for name, node in _map(answer, "nodes").items():
        if isinstance(node, dict):
            hosts[str(_map(node, "resources_available").get("host", name))].append(node)
    nodes = []
    for host, vnodes in hosts.items():
        have = [_map(vnode, "resources_available") for vnode in vnodes]
        memory = sum(mebibytes(str(each.get("mem", "0"))) or 0 for each in have)
        cores, gpus = (sum(whole(str(each.get(name))) or 0 for each in have) for name in ("ncpus", "ngpus"))
        of = tuple(dict.fromkeys(str(vnode["queue"]) for vnode in vnodes if vnode.get("queue")))
        nodes.append(NodeFacts(host, NodeKind(cores or None, memory or None, gpus), of))
    parts = (part.partition("\n") for part in re.split(r"^Queue:", ask("qstat", "-Qf"), flags=re.MULTILINE)[1:])
    blocks = {name.strip(): _values(text, " = ") for name, _, text in parts}
    default = _values(ask("qstat", "-Bf"), " = ").get("default_queue", "")
    queues = [
        QueueFacts(
            name,
            name == default,
            minutes(values.get("resources_max.walltime", ""), 1 / 60),
            whole(values.get("resources_max.nodect", "")),
        )
        for name, values in blocks.items()
        if values.get("from_route_only") != "True" and all(values.get(key, word) == word for key, word in OPEN.items())
    ]
    return nodes, queues, notes


def _map(answer: Any, key: str) -> dict[str, Any]:
    """A map in an answer; empty where there is none."""
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, dict) else {}


def _values(text: str, separator: str | None = None) -> dict[str, str]:
    """Key and value of each line, with blanks or a separator between them.

    A value goes on in the next line where its own ends with a backslash (qconf), or the next begins with a tab (qstat).
    """
    joined = text.replace("\\\n", " ").replace("\n\t", "")
    pairs = (line.strip().split(separator, 1) for line in joined.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


SGE_GPU = re.compile(r"gpus?|ngpus|num_gpus?|gpu_count|cuda")


def sge(ask: Ask) -> Found:
    """Grid Engine: qhost, and qconf about queues and complexes."""
    complexes = [
        row for line in ask("qconf", "-sc").splitlines() if line[:1].isalpha() and len(row := line.split()) >= 6
    ]
    gpu = next((row[0] for row in complexes if SGE_GPU.fullmatch(row[0]) and row[5] != "NO"), None)
    nodes = _sge_nodes(ask("qhost", *(["-F", gpu] if gpu else [])), gpu)
    names = ask("qconf", "-sql").split()
    queues = {name: _values(ask("qconf", "-sq", name)) if i < MAX_ASKED else {} for i, name in enumerate(names)}
    # A queue's own limit stands before those of single hosts.
    limits = {name: values.get("h_rt", "").partition(",")[0] for name, values in queues.items()}
    return nodes, [QueueFacts(name, walltime_min=minutes(text, 1 / 60)) for name, text in limits.items()], []


def _sge_nodes(text: str, gpu: str | None) -> list[NodeFacts]:
    """The table of qhost; with `-F`, lines about a host's resources follow its own."""
    header: list[str] = []
    nodes: list[NodeFacts] = []
    for line in text.splitlines():
        cells = line.split()
        if cells[:1] == ["HOSTNAME"]:
            header = cells
        elif line[:1].isspace():
            counted = re.search(rf"\b\w\w:{re.escape(gpu)}=([0-9]{{1,9}})(?:\.0*)?(?![\d.])", line) if gpu else None
            if counted and nodes:
                nodes[-1] = replace(nodes[-1], kind=replace(nodes[-1].kind, gpus=int(counted[1])))
        elif header and len(cells) == len(header) and not line.startswith(("---", "global")):
            row = dict(zip(header, cells, strict=True))
            cores = least(whole(row.get(name, "")) for name in ("NCOR", "NCPU"))
            kind = NodeKind(cores, mebibytes(row.get("MEMTOT", "-")), 0)
            nodes.append(NodeFacts(row["HOSTNAME"], kind))
    return nodes


WORDS = {"slurm": "Slurm", "pbs": "PBS", "sge": "Grid Engine"}
