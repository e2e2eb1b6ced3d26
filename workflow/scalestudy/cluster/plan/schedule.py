"""The least makespan of a plan: what the jobs' needs and the limits of one user allow. Waiting in the queue is not in it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scalestudy.spec.machine import Machine

if TYPE_CHECKING:
    from scalestudy.cluster.plan.hours import PlannedJob

Limits = Mapping[str, tuple[float, float]]
"""Most jobs and most nodes at one time, of each queue and, under an empty name, of the machine."""
MACHINE = ""


def limits_of(machine: Machine, jobs: int | None = None) -> Limits:
    """Limits of a machine and its queues; `jobs` is the driver's own `--jobs`."""

    def least(*values: int | None) -> float:
        return min((value for value in values if value is not None), default=math.inf)

    whole = least(jobs, machine.limits.most_jobs), least(machine.nodes, machine.limits.most_nodes_running)
    queues = {name: (least(one.most_jobs), least(one.most_nodes_running)) for name, one in machine.queues.items()}
    return {MACHINE: whole, **queues}


def makespan(jobs: Sequence[PlannedJob], seconds: npt.NDArray[np.float64], limits: Limits) -> npt.NDArray[np.float64]:
    """Least seconds [draws] from the first start to the last end, by each job's `seconds` [draws, jobs].

    The longer of two: the longest chain of jobs that need each other's files, of which a dry run names both ends; and the
    job hours and node hours of the machine or of a queue over the jobs and nodes that it lets run at one time.
    """
    known = {job.column: job for job in jobs}
    makers = {file: job.column for job in jobs for file in job.seen.outputs}

    @functools.cache
    def end(column: int) -> npt.NDArray[np.float64]:
        needs = {makers[file] for file in known[column].seen.inputs if file in makers}
        begin = np.max([end(need) for need in needs], axis=0, initial=0.0)
        return np.asarray(begin + seconds[:, column])

    least = [end(column) for column in known]
    for queue, (most_jobs, most_nodes) in limits.items():
        held = [job for job in jobs if job.submitted and queue in (MACHINE, job.resources.queue)]
        each = seconds[:, [job.column for job in held]]
        nodes = np.array([min(job.resources.nodes, most_nodes) for job in held], dtype=float)
        least += [each.sum(axis=1) / most_jobs, each @ nodes / most_nodes]
    return np.asarray(np.max(least, axis=0))
