"""When jobs would run: the critical path, and the makespan under a queue's limits. Waiting in the queue is not in it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scalestudy.spec.machine import Machine, Queue


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
    """Limits on what runs at the same time. None: no limit."""

    jobs: int | None = None
    nodes: int | None = None
    queues: Mapping[str, Queue] = field(default_factory=dict)

    @staticmethod
    def of(machine: Machine, jobs: int | None) -> QueueLimits:
        """Those of a machine, and of the driver's own `--jobs`."""
        running = [limit for limit in (jobs, machine.limits.most_jobs) if limit is not None]
        nodes = [limit for limit in (machine.nodes, machine.limits.most_nodes_running) if limit is not None]
        return QueueLimits(min(running, default=None), min(nodes, default=None), machine.queues)


def critical_path(tasks: Sequence[ScheduledJob], seconds: Callable[[ScheduledJob], int]) -> int:
    """Seconds of the longest chain of jobs that need each other: the time with unlimited nodes."""
    ends: dict[int, int] = {}
    for task in in_order(tasks):
        ends[task.id] = max((ends[need] for need in task.needs), default=0) + seconds(task)
    return max(ends.values(), default=0)


def in_order(tasks: Sequence[ScheduledJob]) -> list[ScheduledJob]:
    """The jobs in an order in which each follows those that it needs."""
    known = {task.id: task for task in tasks}
    followers = _followers(tasks)
    missing = {task.id: len(task.needs) for task in tasks}
    ready = [task for task in tasks if not task.needs]
    for task in ready:
        for follower in followers[task.id]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(known[follower])
    return ready


def starts(
    tasks: Sequence[ScheduledJob], seconds: Callable[[ScheduledJob], int], limits: QueueLimits
) -> dict[int, int]:
    """When each job starts: the most urgent first.

    Where the most urgent one does not fit, its room is reserved: others start only if they end before it can (EASY
    backfill, as schedulers do it; Lifka, The ANL/IBM SP scheduling system, 1995).
    """
    known = {task.id: task for task in tasks}
    followers = _followers(tasks)
    missing = {task.id: len(task.needs) for task in tasks}
    waiting: dict[tuple[int, str | None], list[tuple[int, int]]] = defaultdict(list)
    for first in tasks:
        if not first.needs:
            heapq.heappush(waiting[first.nodes, first.queue], (-first.priority, first.id))
    begun: dict[int, int] = {}
    running: list[tuple[int, int]] = []
    use, now, reserved = _Use(limits), 0, _Reserved()
    while True:
        while (task := _next(waiting, known, use, running, now, seconds, reserved)) is not None:
            begun[task.id] = now
            use.take(task)
            heapq.heappush(running, (now + seconds(task), task.id))
        if not running:
            return begun
        now, ended = heapq.heappop(running)
        use.give(known[ended])
        for follower in followers[ended]:
            missing[follower] -= 1
            if not missing[follower]:
                ready = known[follower]
                heapq.heappush(waiting[ready.nodes, ready.queue], (-ready.priority, ready.id))


def makespan(begun: Mapping[int, int], tasks: Sequence[ScheduledJob], seconds: Callable[[ScheduledJob], int]) -> int:
    """Seconds from the first start to the last end."""
    return max((begun[task.id] + seconds(task) for task in tasks), default=0)


class _Use:
    """What runs at a given time."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.jobs = self.nodes = 0
        self.in_queue: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def copy(self) -> _Use:
        """The same use, to be changed."""
        use = _Use(self.limits)
        use.jobs, use.nodes = self.jobs, self.nodes
        use.in_queue.update({name: list(counts) for name, counts in self.in_queue.items()})
        return use

    def fits(self, nodes: int, name: str | None) -> bool:
        """Whether a job of this many nodes may start. One that is too large for an empty machine starts alone."""
        if nodes == 0 or self.jobs == 0:
            return True
        limits = self.limits
        if limits.jobs is not None and self.jobs >= limits.jobs:
            return False
        if limits.nodes is not None and self.nodes + nodes > limits.nodes:
            return False
        queue = limits.queues.get(name) if name is not None else None
        if queue is None or name is None:
            return True
        jobs, taken = self.in_queue[name]
        if queue.most_jobs is not None and jobs >= queue.most_jobs:
            return False
        return queue.most_nodes_running is None or jobs == 0 or taken + nodes <= queue.most_nodes_running

    def take(self, task: ScheduledJob) -> None:
        """A job starts."""
        self._add(task, 1)

    def give(self, task: ScheduledJob) -> None:
        """A job ends."""
        self._add(task, -1)

    def _add(self, task: ScheduledJob, sign: int) -> None:
        if task.nodes:
            self.jobs += sign
            self.nodes += sign * task.nodes
            if task.queue is not None:
                counts = self.in_queue[task.queue]
                counts[0] += sign
                counts[1] += sign * task.nodes


@dataclass
class _Reserved:
    """The room that is kept for the most urgent job, which does not fit: what starts meanwhile leaves its time as it is."""

    task: int | None = None
    free_at: int = 0


def _next(
    waiting: Mapping[tuple[int, str | None], list[tuple[int, int]]],
    known: Mapping[int, ScheduledJob],
    use: _Use,
    running: Sequence[tuple[int, int]],
    now: int,
    seconds: Callable[[ScheduledJob], int],
    reserved: _Reserved,
) -> ScheduledJob | None:
    """The job that starts next, taken from the waiting ones; None where none may start now."""
    keys = sorted((key for key, heap in waiting.items() if heap), key=lambda key: waiting[key][0])
    if not keys:
        return None
    first = keys[0]
    urgent = waiting[first][0][1]
    if use.fits(*first):
        reserved.task = None
        return known[heapq.heappop(waiting[first])[1]]
    for key in keys[1:]:
        if not use.fits(*key):
            continue
        task = known[waiting[key][0][1]]
        if task.nodes == 0:
            return known[heapq.heappop(waiting[key])[1]]
        if reserved.task != urgent:
            reserved.task, reserved.free_at = urgent, _free_at(first, known, use, running)
        if now + seconds(task) <= reserved.free_at:
            return known[heapq.heappop(waiting[key])[1]]
    return None


def _free_at(
    wanted: tuple[int, str | None], known: Mapping[int, ScheduledJob], use: _Use, running: Sequence[tuple[int, int]]
) -> int:
    """When a job of this kind can start if nothing else does."""
    use = use.copy()
    for ends, task in sorted(running):
        use.give(known[task])
        if use.fits(*wanted):
            return ends
    raise AssertionError("a job that does not fit an empty machine starts alone")


def _followers(tasks: Sequence[ScheduledJob]) -> dict[int, list[int]]:
    followers: dict[int, list[int]] = defaultdict(list)
    for task in tasks:
        for need in task.needs:
            followers[need].append(task.id)
    return followers
