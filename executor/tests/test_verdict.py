"""What follows from each end of a job."""

from __future__ import annotations

from typing import Any

import pytest

from snakemake_executor_plugin_multinode.records import Attempt
from snakemake_executor_plugin_multinode.runstate import RunState
from snakemake_executor_plugin_multinode.schedulers import Cause, State, Status
from snakemake_executor_plugin_multinode.status_files import End
from snakemake_executor_plugin_multinode.verdict import Ending, Outcome, Verdict, verdict

FAILED = End(1, "", 100, 200, "node1")
TERMINATED = End(1, "TERM", 100, 200, "node1")
SAVED = RunState("checkpointed", 100.0, "the deadline is near", True)
OLD = RunState("checkpointed", 100.0, "the deadline is near", False)


def attempt(progress: float | None = None, cause: str = "", node_fault: bool = False) -> Attempt:
    return Attempt("n", "1", 0.0, 0.0, cause=cause, progress=progress, node_fault=node_fault)


def judged_of(
    end: End | None, status: Status | None, run: RunState | None, attempts: list[Attempt], **more: Any
) -> Verdict:
    return verdict(Ending(end, status, run, attempts, **{"mem_mb": 4000, "runtime_min": 60, **more}))


def ended(cause: Cause, words: str = "WORDS", signal: int | None = None) -> Status:
    return Status("1", State.ENDED, words, cause, signal)


@pytest.mark.parametrize(
    ("end", "status", "run", "outcome", "sentence"),
    [
        (End(0, "", 1, 2, "n"), None, None, Outcome.SUCCESS, "finished"),
        (End(0, "TERM", 1, 2, "n"), ended(Cause.CANCELLED), None, Outcome.SUCCESS, "finished"),
        (None, ended(Cause.FINISHED), None, Outcome.CONTINUE, "its script never started, although the scheduler reports success (WORDS)"),
        (FAILED, None, SAVED, Outcome.CONTINUE, "the deadline is near (progress 100)"),
        (FAILED, ended(Cause.COMMAND), SAVED, Outcome.CONTINUE, "the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.WALLTIME), SAVED, Outcome.CONTINUE, "the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.PREEMPTED), SAVED, Outcome.CONTINUE, "preempted (WORDS): the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.CANCELLED), SAVED, Outcome.FAILURE, "cancelled by its owner or an administrator (WORDS)"),
        (None, ended(Cause.WALLTIME), OLD, Outcome.CONTINUE, "the walltime of 60 min was reached before a checkpoint (WORDS), without progress"),
        (None, ended(Cause.WALLTIME), None, Outcome.FAILURE, "the walltime of 60 min was reached (WORDS), and it leaves no checkpoint: raise the resource `runtime`"),
        (None, ended(Cause.WALLTIME), RunState("running", 40.0, "saved after step 40", True), Outcome.CONTINUE, "the walltime of 60 min was reached (WORDS): saved after step 40 (progress 40)"),
        (None, ended(Cause.WALLTIME), RunState("running", 40.0, "saved after step 40", False), Outcome.CONTINUE, "the walltime of 60 min was reached before a checkpoint (WORDS), without progress"),
        (FAILED, ended(Cause.COMMAND), RunState("running", 40.0, "saved after step 40", True), Outcome.FAILURE, "its command failed"),
        (FAILED, ended(Cause.MEMORY), None, Outcome.FAILURE, "out of memory (WORDS): raise the resource `mem_mb`, now 4000 MiB per node"),
        (FAILED, ended(Cause.MEMORY), SAVED, Outcome.FAILURE, "out of memory (WORDS): raise the resource `mem_mb`, now 4000 MiB per node"),
        (None, ended(Cause.PREEMPTED), None, Outcome.CONTINUE, "preempted (WORDS), without progress"),
        (None, ended(Cause.NODE), None, Outcome.CONTINUE, "the node or its software failed (WORDS)"),
        (None, None, None, Outcome.CONTINUE, "lost: it began, left no exit status, and the scheduler no longer knows it"),
        (FAILED, ended(Cause.COMMAND), RunState("failed", 0.0, "the loss is not a number", True), Outcome.FAILURE, "the loss is not a number"),
        (FAILED, ended(Cause.COMMAND), OLD, Outcome.FAILURE, "its command failed"),
        (FAILED, None, None, Outcome.FAILURE, "its command failed"),
        (None, ended(Cause.SIGNAL, signal=9), None, Outcome.FAILURE, "killed by signal 9, cause unknown (WORDS)"),
        (End(137, "", 1, 2, "n"), None, None, Outcome.FAILURE, "killed by signal 9, cause unknown"),
        (TERMINATED, None, None, Outcome.FAILURE, "ended after signal TERM, cause unknown"),
        (None, ended(Cause.UNKNOWN), None, Outcome.FAILURE, "ended, cause unknown (WORDS)"),
    ],
)  # fmt: skip
def test_an_end_is_answered_by_its_cause(
    end: End | None, status: Status | None, run: RunState | None, outcome: Outcome, sentence: str
) -> None:
    judged = judged_of(end, status, run, [attempt()])
    assert (judged.outcome, judged.cause) == (outcome, sentence)


def test_a_job_that_began_and_left_no_end_has_finished_where_the_scheduler_says_so() -> None:
    judged = judged_of(None, ended(Cause.FINISHED), None, [attempt()], began_s=100.0)
    assert (judged.outcome, judged.cause) == (Outcome.SUCCESS, "finished, by the scheduler's record")


RUNNING = RunState("running", 40.0, "saved after step 40", True)


@pytest.mark.parametrize(
    ("end", "ran_s"), [(TERMINATED, 3600.0), (None, 3545.0)], ids=["its own end", "last heartbeat"]
)
def test_a_job_that_ran_as_long_as_it_might_was_over_its_walltime_although_its_scheduler_keeps_no_record(
    end: End | None, ran_s: float
) -> None:
    judged = judged_of(end, None, RUNNING, [attempt()], ran_s=ran_s, unrecorded=True)
    assert (judged.outcome, judged.cause) == (
        Outcome.CONTINUE,
        "the walltime of 60 min was reached (by its start and its end; the scheduler says nothing of it): "
        "saved after step 40 (progress 40)",
    )


def test_a_job_that_was_terminated_early_where_no_record_is_kept_was_deleted_and_is_not_submitted_again() -> None:
    judged = judged_of(TERMINATED, None, SAVED, [attempt()], ran_s=100.0, unrecorded=True)
    assert (judged.outcome, judged.cause) == (
        Outcome.FAILURE,
        "ended by signal TERM before its walltime, and the scheduler has no record of it: deleted by somebody, or preempted; "
        "it has saved, and the same command resumes it",
    )
    assert judged_of(TERMINATED, None, SAVED, [attempt()], ran_s=3600.0, unrecorded=True).outcome is Outcome.CONTINUE
    assert (
        judged_of(TERMINATED, None, SAVED, [attempt()], runtime_min=None, ran_s=9.0, unrecorded=True).outcome
        is Outcome.CONTINUE
    )


def test_a_set_up_that_fails_is_a_fault_of_the_node_and_tried_elsewhere_once() -> None:
    end = End(78, "", 100, 101, "node1", "the set-up of the site failed")
    judged = judged_of(end, ended(Cause.COMMAND), None, [attempt()], host="node1")
    assert (judged.outcome, judged.node_fault) == (Outcome.CONTINUE, True)
    assert judged.cause == "the set-up of the site failed (on node1)"
    again = judged_of(end, None, None, [attempt(node_fault=True), attempt()], host="node2")
    assert (again.outcome, again.cause[-7:]) == (Outcome.FAILURE, ", again")


def test_two_attempts_in_a_row_without_progress_are_a_failure() -> None:
    before = [attempt(100.0, "the deadline is near"), attempt(100.0, "the deadline is near")]
    judged = judged_of(FAILED, None, SAVED, [*before, attempt()])
    assert judged.outcome is Outcome.FAILURE
    assert judged.cause == "2 attempts in a row made no progress; the last: the deadline is near (progress 100)"


def test_a_job_that_a_restarted_scheduler_started_again_and_deleted_is_tried_once_more() -> None:
    status = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED, started_s=106.0)
    judged = judged_of(TERMINATED, status, None, [attempt()], began_s=100.0)
    assert (judged.outcome, judged.node_fault) == (Outcome.CONTINUE, True)
    assert judged.cause == "the scheduler had forgotten that the job runs, started it again, and deleted it (CANCELLED)"
    assert (
        judged_of(TERMINATED, status, None, [attempt(node_fault=True), attempt()], began_s=100.0).outcome
        is Outcome.FAILURE
    )


@pytest.mark.parametrize("began_s", [105.0, 106.0, 110.0, None])
def test_a_job_that_began_when_its_scheduler_says_was_cancelled_by_a_person(began_s: float | None) -> None:
    status = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED, started_s=106.0)
    judged = judged_of(TERMINATED, status, None, [attempt()], began_s=began_s)
    assert (judged.outcome, judged.cause) == (Outcome.FAILURE, "cancelled by its owner or an administrator (CANCELLED)")


def test_a_job_that_a_restarted_scheduler_deleted_on_its_nodes_before_it_began_is_tried_once_more() -> None:
    status = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED, nodes=("node2",), started_s=106.0)
    judged = judged_of(None, status, None, [attempt()])
    assert (judged.outcome, judged.node_fault) == (Outcome.CONTINUE, True)
    assert judged.cause == "deleted after it had been given node2, before its script began (CANCELLED)"


def test_a_job_that_was_terminated_and_that_its_scheduler_does_not_know_is_tried_once_more() -> None:
    judged = judged_of(TERMINATED, None, None, [attempt()], began_s=100.0, forgotten=True)
    assert (judged.outcome, judged.node_fault) == (Outcome.CONTINUE, True)
    assert judged.cause == "ended by signal TERM, and the scheduler does not know that it ran: it forgot the job"
    assert judged_of(FAILED, None, None, [attempt()], began_s=100.0, forgotten=True).outcome is Outcome.FAILURE
