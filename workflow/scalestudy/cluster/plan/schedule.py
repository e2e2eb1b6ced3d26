"""When jobs would run: the makespan under a queue's limits. Waiting in the queue is not in it."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalestudy.spec.machine import Machine

Limits = Mapping[str, tuple[float, float]]
"""Most jobs and most nodes at one time, of each queue and, under an empty name, of the machine."""
MACHINE = ""


@dataclass(frozen=True)
class ScheduledJob:
    """A job in a schedule."""

    id: int
    needs: tuple[int, ...]
    priority: int
    nodes: int
    """0: a small job of the driver's, which takes no time here and waits for nothing but its inputs."""
    queue: str | None = None


def limits_of(machine: Machine, jobs: int | None = None) -> Limits:
    """Limits of a machine and its queues; `jobs` is the driver's own `--jobs`."""

    def least(*values: int | None) -> float:
        return min((value for value in values if value is not None), default=math.inf)

    whole = least(jobs, machine.limits.most_jobs), least(machine.nodes, machine.limits.most_nodes_running)
    queues = {name: (least(one.most_jobs), least(one.most_nodes_running)) for name, one in machine.queues.items()}
    return {MACHINE: whole, **queues}


class _Use:
    """Jobs and nodes in use on the machine and in each queue, and the running jobs as a heap of end, id and job."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.jobs, self.nodes = Counter[str](), Counter[str]()
        self.running: list[tuple[int, int, ScheduledJob]] = []

    def fits(self, task: ScheduledJob) -> bool:
        """Whether a job may start. One that is too large for an empty machine or queue starts alone."""
        return not task.nodes or not any(
            self.jobs[name] and (self.jobs[name] >= jobs or self.nodes[name] + task.nodes > nodes)
            for name in {MACHINE, task.queue or MACHINE} & self.limits.keys()
            for jobs, nodes in [self.limits[name]]
        )

    def change(self, task: ScheduledJob, sign: int) -> None:
        """Count a job that starts (1) or ends (-1)."""
        for name in {MACHINE, task.queue or MACHINE} if task.nodes else ():
            self.jobs[name] += sign
            self.nodes[name] += sign * task.nodes

    def next_end(self) -> tuple[int, ScheduledJob]:
        """Go on to the next end of a job."""
        end, _, task = heapq.heappop(self.running)
        self.change(task, -1)
        return end, task

    def free_at(self, wanted: ScheduledJob) -> int:
        """When a job that does not fit now can start if nothing else does."""
        later, end = _Use(self.limits), 0
        later.jobs, later.nodes, later.running = self.jobs.copy(), self.nodes.copy(), self.running.copy()
        while not later.fits(wanted):
            end, _ = later.next_end()
        return end


def starts(tasks: Sequence[ScheduledJob], seconds: Mapping[int, int], limits: Limits) -> dict[int, int]:
    """When each job starts: the most urgent first.

    Where the most urgent one does not fit, its room is reserved: others start only if they end before it can (EASY
    backfill, as schedulers do it; Lifka, The ANL/IBM SP scheduling system, 1995).
    """
    known = {task.id: task for task in tasks}
    missing = {task.id: len(task.needs) for task in tasks}
    followers: dict[int, list[int]] = defaultdict(list)
    for task in tasks:
        for need in task.needs:
            followers[need].append(task.id)
    # Heaps of alike jobs: a large study has few kinds.
    waiting: dict[tuple[int, str | None], list[tuple[int, int]]] = defaultdict(list)
    ready = [task.id for task in tasks if not task.needs]
    begun: dict[int, int] = {}
    use, now = _Use(limits), 0
    while True:
        for task in map(known.__getitem__, ready):
            heapq.heappush(waiting[task.nodes, task.queue], (-task.priority, task.id))
        while True:
            firsts = [known[one] for _, one in sorted(heap[0] for heap in waiting.values() if heap)]
            if (following := _next(firsts, use, now, seconds)) is None:
                break
            heapq.heappop(waiting[following.nodes, following.queue])
            begun[following.id] = now
            use.change(following, 1)
            heapq.heappush(use.running, (now + seconds[following.id], following.id, following))
        if not use.running:
            return begun
        now, ended = use.next_end()
        for follower in followers[ended.id]:
            missing[follower] -= 1
        ready = [follower for follower in followers[ended.id] if not missing[follower]]


def _next(firsts: Sequence[ScheduledJob], use: _Use, now: int, seconds: Mapping[int, int]) -> ScheduledJob | None:
    """The job that starts next, of the most urgent one of each kind; None where none may start now."""
    if not firsts or use.fits(firsts[0]):
        return firsts[0] if firsts else None
    free_at = None
    for task in filter(use.fits, firsts[1:]):
        free_at = free_at or use.free_at(firsts[0])
        if not task.nodes or now + seconds[task.id] <= free_at:
            return task
    return None


def makespan(tasks: Sequence[ScheduledJob], seconds: Mapping[int, int], limits: Limits) -> int:
    """Seconds from the first start to the last end."""
    return max((begin + seconds[one] for one, begin in starts(tasks, seconds, limits).items()), default=0)
