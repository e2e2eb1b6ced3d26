"""Critical path and makespan."""

from __future__ import annotations

from scalestudy.cluster.schedule import Limits, Task, critical_path, makespan, starts
from scalestudy.spec.machine import Machine, Queue

LENGTH = {1: 10, 2: 20, 3: 30, 4: 5}


def seconds(task: Task) -> int:
    return LENGTH[task.id]


def span(tasks: list[Task], limits: Limits) -> int:
    return makespan(starts(tasks, seconds, limits), tasks, seconds)


CHAIN = [Task(1, (), 0, 1), Task(2, (1,), 0, 1), Task(3, (), 0, 1), Task(4, (2, 3), 0, 1)]
FREE = [Task(1, (), 1, 2), Task(2, (), 2, 2), Task(3, (), 3, 2)]


def test_the_critical_path_is_the_longest_chain() -> None:
    assert critical_path(CHAIN, seconds) == 35


def test_with_endless_nodes_the_makespan_is_the_critical_path() -> None:
    assert span(CHAIN, Limits()) == 35


def test_one_job_at_a_time_takes_the_sum() -> None:
    assert span(CHAIN, Limits(jobs=1)) == 65


def test_nodes_limit_what_runs_together_and_the_most_urgent_goes_first() -> None:
    begun = starts(FREE, seconds, Limits(nodes=4))
    assert begun == {3: 0, 2: 0, 1: 20}


def test_a_job_larger_than_the_limit_runs_alone() -> None:
    assert span(FREE, Limits(nodes=1)) == 60


def test_a_queue_has_limits_of_its_own() -> None:
    queued = [Task(task.id, (), task.priority, 2, "small") for task in FREE]
    assert span(queued, Limits(queues={"small": Queue(most_jobs=1)})) == 60
    assert span(queued, Limits(queues={"small": Queue(most_nodes_running=4)})) == 30
    assert span(queued, Limits(queues={"other": Queue(most_jobs=1)})) == 30


def test_small_jobs_of_the_driver_wait_for_no_node() -> None:
    tasks = [Task(1, (), 0, 4), Task(2, (), 0, 0), Task(4, (2,), 0, 0)]
    assert starts(tasks, seconds, Limits(nodes=4)) == {1: 0, 2: 0, 4: 20}


def test_the_limits_of_a_machine_and_of_the_driver_both_hold() -> None:
    machine = Machine(nodes=540, limits=Queue(most_jobs=30, most_nodes_running=72))
    assert Limits.of(machine, 100) == Limits(30, 72, {})
    assert Limits.of(machine, 5) == Limits(5, 72, {})


def test_room_is_reserved_for_a_wide_job_that_is_the_most_urgent() -> None:
    """Nodes 1 to 4: job 2 (2 nodes) runs to 20, job 3 wants all four. Job 1 ends in time and may go before, a longer
    one may not."""
    tasks = [Task(2, (), 3, 2), Task(3, (), 2, 4), Task(1, (), 1, 2), Task(4, (), 0, 1)]
    assert starts(tasks, seconds, Limits(nodes=4)) == {2: 0, 1: 0, 4: 10, 3: 20}
    longer = {**LENGTH, 1: 25}
    assert starts(tasks, lambda task: longer[task.id], Limits(nodes=4)) == {2: 0, 4: 0, 3: 20, 1: 50}
