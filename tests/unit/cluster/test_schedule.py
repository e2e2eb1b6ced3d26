"""The makespan under limits."""

from __future__ import annotations

from scalestudy.cluster.plan.schedule import Limits, ScheduledJob, limits_of, makespan, starts
from scalestudy.spec.machine import Machine, Queue

LENGTH = {1: 10, 2: 20, 3: 30, 4: 5}


def limits(jobs: int | None = None, nodes: int | None = None, **queues: Queue) -> Limits:
    return limits_of(Machine(nodes=nodes, queues=queues), jobs)


def span(tasks: list[ScheduledJob], jobs: int | None = None, nodes: int | None = None, **queues: Queue) -> int:
    return makespan(tasks, LENGTH, limits(jobs, nodes, **queues))


CHAIN = [
    ScheduledJob(1, (), 0, 1),
    ScheduledJob(2, (1,), 0, 1),
    ScheduledJob(3, (), 0, 1),
    ScheduledJob(4, (2, 3), 0, 1),
]
FREE = [ScheduledJob(1, (), 1, 2), ScheduledJob(2, (), 2, 2), ScheduledJob(3, (), 3, 2)]


def test_the_makespan_is_the_longest_chain_or_the_sum_of_what_runs_alone() -> None:
    assert span(CHAIN) == 35
    assert span(CHAIN, jobs=1) == 65
    assert span(FREE, nodes=1) == 60  # larger than the machine


def test_nodes_limit_what_runs_together_and_the_most_urgent_goes_first() -> None:
    assert starts(FREE, LENGTH, limits(nodes=4)) == {3: 0, 2: 0, 1: 20}


def test_a_queue_has_limits_of_its_own() -> None:
    queued = [ScheduledJob(task.id, (), task.priority, 2, "small") for task in FREE]
    assert span(queued, small=Queue(most_jobs=1)) == 60
    assert span(queued, small=Queue(most_nodes_running=4)) == 30
    assert span(queued, other=Queue(most_jobs=1)) == 30


def test_small_jobs_of_the_driver_wait_for_no_node() -> None:
    tasks = [ScheduledJob(1, (), 0, 4), ScheduledJob(2, (), 0, 0), ScheduledJob(4, (2,), 0, 0)]
    assert starts(tasks, LENGTH, limits(nodes=4)) == {1: 0, 2: 0, 4: 20}


def test_the_limits_of_a_machine_and_of_the_driver_both_hold() -> None:
    machine = Machine(nodes=540, limits=Queue(most_jobs=30, most_nodes_running=72))
    assert limits_of(machine, 100) == {"": (30, 72)}
    assert limits_of(machine, 5) == {"": (5, 72)}


def test_room_is_reserved_for_a_wide_job_that_is_the_most_urgent() -> None:
    """Nodes 1 to 4: job 2 (2 nodes) runs to 20, job 3 wants all four. Job 1 ends in time and may go before, a longer
    one may not."""
    tasks = [ScheduledJob(2, (), 3, 2), ScheduledJob(3, (), 2, 4), ScheduledJob(1, (), 1, 2), ScheduledJob(4, (), 0, 1)]
    assert starts(tasks, LENGTH, limits(nodes=4)) == {2: 0, 1: 0, 4: 10, 3: 20}
    assert starts(tasks, {**LENGTH, 1: 25}, limits(nodes=4)) == {2: 0, 4: 0, 3: 20, 1: 50}
