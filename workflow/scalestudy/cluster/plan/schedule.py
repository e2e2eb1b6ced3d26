"""When jobs would run: the makespan under a queue's limits. Waiting in the queue is not in it."""

from __future__ import annotations

import copy
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalestudy.spec.machine import Machine, Queue

ALL = ""
"""Stands for the machine beside the names of its queues."""


@dataclass(frozen=True)
class ScheduledJob:
    """A job in a schedule."""

    id: int
    needs: tuple[int, ...]
    priority: int
    nodes: int
    """0: a small job of the driver's, which takes no time here and waits for nothing but its inputs."""
    queue: str | None = None


@dataclass(frozen=True)
class QueueLimits:
    """Limits on concurrent jobs. None: no limit."""

    jobs: int | None = None
    nodes: int | None = None
    queues: Mapping[str, Queue] = field(default_factory=dict)

    @staticmethod
    def of(machine: Machine, jobs: int | None) -> QueueLimits:
        """Those of a machine, and of the driver's own `--jobs`."""
        running = [limit for limit in (jobs, machine.limits.most_jobs) if limit is not None]
        nodes = [limit for limit in (machine.nodes, machine.limits.most_nodes_running) if limit is not None]
        return QueueLimits(min(running, default=None), min(nodes, default=None), machine.queues)


class _Use:
    """Jobs and nodes in use on the machine and in each queue."""

    def __init__(self, limits: QueueLimits) -> None:
        most = {name: (queue.most_jobs, queue.most_nodes_running) for name, queue in limits.queues.items()}
        self.most = {ALL: (limits.jobs, limits.nodes), **most}
        self.jobs, self.nodes = Counter[str](), Counter[str]()

    def fits(self, task: ScheduledJob) -> bool:
        """Whether a job may start. One that is too large for an empty machine or queue starts alone."""
        if not task.nodes:
            return True
        for name in {ALL, task.queue or ALL} & self.most.keys():
            jobs, nodes = (math.inf if limit is None else limit for limit in self.most[name])
            if self.jobs[name] and (self.jobs[name] >= jobs or self.nodes[name] + task.nodes > nodes):
                return False
        return True

    def change(self, task: ScheduledJob, sign: int) -> None:
        """A job starts (1) or ends (-1)."""
        if task.nodes:
            for name in {ALL, task.queue or ALL}:
                self.jobs[name] += sign
                self.nodes[name] += sign * task.nodes


Kind = tuple[int, str | None]
Running = list[tuple[int, int]]
"""Ends and ids of the running jobs, as a heap."""


def starts(tasks: Sequence[ScheduledJob], seconds: Mapping[int, int], limits: QueueLimits) -> dict[int, int]:
    """When each job starts: the most urgent first.

    Where the most urgent one does not fit, its room is reserved: others start only if they end before it can (EASY
    backfill, as schedulers do it; Lifka, The ANL/IBM SP scheduling system, 1995).
    """
    known = {task.id: task for task in tasks}
    missing = {task.id: len(task.needs) for task in tasks}
    followers: dict[int, list[int]] = defaultdict(list)
    waiting: dict[Kind, list[tuple[int, int]]] = defaultdict(list)  # heaps of alike jobs: a large study has few kinds
    ready = [task.id for task in tasks if not task.needs]
    for task in tasks:
        for need in task.needs:
            followers[need].append(task.id)
    begun: dict[int, int] = {}
    running: Running = []
    use, now = _Use(limits), 0
    while True:
        for task in map(known.__getitem__, ready):
            heapq.heappush(waiting[task.nodes, task.queue], (-task.priority, task.id))
        while (kind := _next(waiting, known, use, running, now, seconds)) is not None:
            task = known[heapq.heappop(waiting[kind])[1]]
            begun[task.id] = now
            use.change(task, 1)
            heapq.heappush(running, (now + seconds[task.id], task.id))
        if not running:
            return begun
        now, ended = heapq.heappop(running)
        use.change(known[ended], -1)
        for follower in followers[ended]:
            missing[follower] -= 1
        ready = [follower for follower in followers[ended] if not missing[follower]]


def makespan(tasks: Sequence[ScheduledJob], seconds: Mapping[int, int], limits: QueueLimits) -> int:
    """Seconds from the first start to the last end."""
    ids = {task.id for task in tasks}
    begun = starts(tasks, seconds, limits)
    return max((begun[one] + seconds[one] for one in ids), default=0)


def _next(
    waiting: Mapping[Kind, list[tuple[int, int]]],
    known: Mapping[int, ScheduledJob],
    use: _Use,
    running: Running,
    now: int,
    seconds: Mapping[int, int],
) -> Kind | None:
    """The kind of the job that starts next; None where none may start now."""
    kinds = sorted((kind for kind, heap in waiting.items() if heap), key=lambda kind: waiting[kind][0])
    firsts = [known[waiting[kind][0][1]] for kind in kinds]
    if not firsts or use.fits(firsts[0]):
        return kinds[0] if kinds else None
    free_at = None
    for kind, task in zip(kinds[1:], firsts[1:], strict=True):
        if not use.fits(task):
            continue
        if free_at is None and task.nodes:
            free_at = _free_at(firsts[0], known, use, running)
        if not task.nodes or now + seconds[task.id] <= (free_at or 0):
            return kind
    return None


def _free_at(wanted: ScheduledJob, known: Mapping[int, ScheduledJob], use: _Use, running: Running) -> int:
    """When a job can start if nothing else does."""
    later = copy.copy(use)
    later.jobs, later.nodes = use.jobs.copy(), use.nodes.copy()
    for ends, task in sorted(running):
        later.change(known[task], -1)
        if later.fits(wanted):
            return ends
    raise AssertionError("a job that does not fit an empty machine starts alone")
