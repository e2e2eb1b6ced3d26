"""The makespan under limits."""

from __future__ import annotations

from scalestudy.cluster.plan.schedule import QueueLimits, ScheduledJob, makespan, starts
from scalestudy.spec.machine import Machine, Queue

LENGTH = {1: 10, 2: 20, 3: 30, 4: 5}


def span(tasks: list[ScheduledJob], limits: QueueLimits) -> int:
    return makespan(tasks, LENGTH, limits)


CHAIN = [
    ScheduledJob(1, (), 0, 1),
    ScheduledJob(2, (1,), 0, 1),
    ScheduledJob(3, (), 0, 1),
    ScheduledJob(4, (2, 3), 0, 1),
]
FREE = [ScheduledJob(1, (), 1, 2), ScheduledJob(2, (), 2, 2), ScheduledJob(3, (), 3, 2)]


def test_with_endless_nodes_the_makespan_is_the_longest_chain() -> None:
    assert span(CHAIN, QueueLimits()) == 35


def test_one_job_at_a_time_takes_the_sum() -> None:
    assert span(CHAIN, QueueLimits(jobs=1)) == 65


def test_nodes_limit_what_runs_together_and_the_most_urgent_goes_first() -> None:
    begun = starts(FREE, LENGTH, QueueLimits(nodes=4))
    assert begun == {3: 0, 2: 0, 1: 20}


def test_a_job_larger_than_the_limit_runs_alone() -> None:
    assert span(FREE, QueueLimits(nodes=1)) == 60


def test_a_queue_has_limits_of_its_own() -> None:
    queued = [ScheduledJob(task.id, (), task.priority, 2, "small") for task in FREE]
    assert span(queued, QueueLimits(queues={"small": Queue(most_jobs=1)})) == 60
    assert span(queued, QueueLimits(queues={"small": Queue(most_nodes_running=4)})) == 30
    assert span(queued, QueueLimits(queues={"other": Queue(most_jobs=1)})) == 30


def test_small_jobs_of_the_driver_wait_for_no_node() -> None:
    tasks = [ScheduledJob(1, (), 0, 4), ScheduledJob(2, (), 0, 0), ScheduledJob(4, (2,), 0, 0)]
    assert starts(tasks, LENGTH, QueueLimits(nodes=4)) == {1: 0, 2: 0, 4: 20}


def test_the_limits_of_a_machine_and_of_the_driver_both_hold() -> None:
    machine = Machine(nodes=540, limits=Queue(most_jobs=30, most_nodes_running=72))
    assert QueueLimits.of(machine, 100) == QueueLimits(30, 72, {})
    assert QueueLimits.of(machine, 5) == QueueLimits(5, 72, {})


def test_room_is_reserved_for_a_wide_job_that_is_the_most_urgent() -> None:
    """Nodes 1 to 4: job 2 (2 nodes) runs to 20, job 3 wants all four. Job 1 ends in time and may go before, a longer
    one may not."""
    tasks = [ScheduledJob(2, (), 3, 2), ScheduledJob(3, (), 2, 4), ScheduledJob(1, (), 1, 2), ScheduledJob(4, (), 0, 1)]
    assert starts(tasks, LENGTH, QueueLimits(nodes=4)) == {2: 0, 1: 0, 4: 10, 3: 20}
    longer = {**LENGTH, 1: 25}
    assert starts(tasks, longer, QueueLimits(nodes=4)) == {2: 0, 4: 0, 3: 20, 1: 50}
