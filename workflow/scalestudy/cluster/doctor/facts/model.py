"""A cluster as its batch system describes it, and how times, sizes and commands are read for that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

QUERY_S = 60.0


@dataclass(frozen=True)
class NodeKind:
    """Nodes that are alike."""

    cores: int | None
    """Physical cores."""
    memory_mib: int | None
    gpus: int
    gpu_type: str | None = None


@dataclass(frozen=True)
class NodeFacts:
    """One node."""

    name: str
    kind: NodeKind
    up: bool = True
    queues: tuple[str, ...] = ()


@dataclass(frozen=True)
class QueueFacts:
    """One queue or partition that is open to users."""

    name: str
    default: bool = False
    walltime_min: float | None = None
    """Longest job; None: no limit."""
    most_nodes: int | None = None
    """Nodes of one job; None: no limit."""
    most_jobs: int | None = None
    """Jobs of one user that run at the same time."""
    exclusive: bool = False
    """Whether every job has its nodes to itself."""


@dataclass(frozen=True)
class ParallelEnvironment:
    """Of Grid Engine: how slots are dealt."""

    name: str
    rule: str


@dataclass(frozen=True)
class ClusterFacts:
    """A whole cluster, as its scheduler describes it to this user."""

    system: str
    """`slurm`, `pbs` or `sge`."""
    nodes: tuple[NodeFacts, ...] = ()
    queues: tuple[QueueFacts, ...] = ()
    """The default one first."""
    accounts: tuple[str, ...] = ()
    most_submitted: int | None = None
    """Jobs that one user may have in the queue."""
    environments: tuple[ParallelEnvironment, ...] = ()
    gpu_resource: str | None = None
    """By which name GPUs are asked for, where sites choose it."""
    exclusive_resource: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences about what is missing, or is good to know."""
    sources: dict[str, str] = field(default_factory=dict)
    """By `nodes`, `queues`, `accounts`: the command that told it."""

    def nodes_of(self, queue: str | None) -> tuple[NodeFacts, ...]:
        """The nodes of a queue; all where the system does not say which they are, or no queue is named."""
        found = tuple(node for node in self.nodes if queue in node.queues)
        return found or self.nodes

    def kind_of(self, queue: str | None) -> NodeKind | None:
        """The commonest kind of node among those of a queue; None where there is no node."""
        counted = Counter(node.kind for node in self.nodes_of(queue))
        return counted.most_common(1)[0][0] if counted else None

    def queue(self, name: str | None) -> QueueFacts | None:
        """The queue of that name, or without a name the default one; None where there is none."""
        if name is None:
            return next((queue for queue in self.queues if queue.default), None)
        return next((queue for queue in self.queues if queue.name == name), None)


class Commands:
    """Asks commands, and keeps what those said that gave no answer."""

    def __init__(self, run: Callable[[Sequence[str], float], Any]) -> None:
        self.run, self.silent = run, list[str]()

    def __call__(self, *command: str) -> str:
        """What a command prints; empty where it fails."""
        from snakemake_executor_plugin_multinode.schedulers import NoAnswer

        try:
            answer = self.run(command, QUERY_S)
        except NoAnswer as error:
            self.silent.append(f"`{' '.join(command)}` gave no answer: {error}")
            return ""
        if answer.code != 0:
            self.silent.append(f"`{' '.join(command)}` ended with status {answer.code}: {answer.words}")
            return ""
        return str(answer.out)


def minutes(text: str, plain_min: float) -> float | None:
    """A time such as `1-00:00:00`, `24:00:00`, or a plain number of `plain_min` minutes each; None where unlimited."""
    found = re.fullmatch(r"(?:([0-9]{1,9})-)?(?:([0-9]{1,9}):)?([0-9]{1,9})(?::([0-9]{1,9}))?", text.strip())
    if found is None:
        return None
    if found[0] == found[3]:
        return int(found[0]) * plain_min
    days, hours, middle, seconds = (int(part or 0) for part in found.groups())
    if found[1] and not found[2] and not found[4]:  # `2-12`: days and hours
        return 60.0 * (24 * days + middle)
    return 60.0 * (24 * days + hours) + middle + seconds / 60


def mebibytes(text: str) -> int | None:
    """A size such as `4000M`, `395gb`, `196743980kb`, `15.6G`, MiB; None where there is none."""
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{0,18})?)\s*([kmgt]?)(i?b|w)?", text.strip().lower())
    if found is None:
        return None
    factor = {"": 2**-20, "k": 2**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}[found[2]]
    return int(float(found[1]) * factor)


def whole(text: str) -> int | None:
    """A whole number from 0; None for anything else, such as `UNLIMITED` or digits without end."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def least(numbers: Iterable[int | None]) -> int | None:
    """The smallest that is known."""
    return min((number for number in numbers if number is not None), default=None)
