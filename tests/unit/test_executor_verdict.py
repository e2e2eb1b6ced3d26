"""What follows from each end of a job."""

from __future__ import annotations

import pytest

from snakemake_executor_plugin_scalestudy.marks import End
from snakemake_executor_plugin_scalestudy.records import Link
from snakemake_executor_plugin_scalestudy.schedulers import Cause, State, Status
from snakemake_executor_plugin_scalestudy.verdict import Action, Asked, Left, verdict

ASKED = Asked(mem_mb=4000, runtime_min=60)
FAILED = End(1, "", 100, 200, "node1")
TERMINATED = End(1, "TERM", 100, 200, "node1")
SAVED = Left("checkpointed", 100.0, "the deadline is near", True)
OLD = Left("checkpointed", 100.0, "the deadline is near", False)


def link(progress: float | None = None, cause: str = "", node_fault: bool = False) -> Link:
    return Link("n", "1", 0.0, 0.0, cause=cause, progress=progress, node_fault=node_fault)


def ended(cause: Cause, words: str = "WORDS", signal: int | None = None) -> Status:
    return Status("1", State.ENDED, words, cause, signal)


@pytest.mark.parametrize(
    ("end", "status", "left", "action", "sentence"),
    [
        (End(0, "", 1, 2, "n"), None, None, Action.SUCCEED, "finished"),
        (End(0, "TERM", 1, 2, "n"), ended(Cause.CANCELLED), None, Action.SUCCEED, "finished"),
        (None, ended(Cause.FINISHED), None, Action.GO_ON, "its script did not begin, although the scheduler says that it has ended well (WORDS)"),
        (FAILED, None, SAVED, Action.GO_ON, "the deadline is near (progress 100)"),
        (FAILED, ended(Cause.COMMAND), SAVED, Action.GO_ON, "the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.WALLTIME), SAVED, Action.GO_ON, "the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.PREEMPTED), SAVED, Action.GO_ON, "preempted (WORDS): the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.CANCELLED), SAVED, Action.FAIL, "cancelled by its owner or an administrator (WORDS)"),
        (None, ended(Cause.WALLTIME), OLD, Action.GO_ON, "the walltime of 60 min was over before a checkpoint (WORDS), without progress"),
        (None, ended(Cause.WALLTIME), None, Action.FAIL, "the walltime of 60 min was over (WORDS), and it leaves no checkpoint: raise the resource `runtime`"),
        (None, ended(Cause.WALLTIME), Left("running", 40.0, "saved after step 40", True), Action.GO_ON, "the walltime of 60 min was over (WORDS): saved after step 40 (progress 40)"),
        (None, ended(Cause.WALLTIME), Left("running", 40.0, "saved after step 40", False), Action.GO_ON, "the walltime of 60 min was over before a checkpoint (WORDS), without progress"),
        (FAILED, ended(Cause.COMMAND), Left("running", 40.0, "saved after step 40", True), Action.FAIL, "its command failed (WORDS)"),
        (FAILED, ended(Cause.MEMORY), None, Action.FAIL, "out of memory (WORDS): raise the resource `mem_mb`, now 4000 MiB per node"),
        (FAILED, ended(Cause.MEMORY), SAVED, Action.FAIL, "out of memory (WORDS): raise the resource `mem_mb`, now 4000 MiB per node"),
        (None, ended(Cause.PREEMPTED), None, Action.GO_ON, "preempted (WORDS), without progress"),
        (None, ended(Cause.NODE), None, Action.GO_ON, "the node or its software failed (WORDS)"),
        (None, None, None, Action.GO_ON, "lost: it began, left no word of its end, and the scheduler knows it no more"),
        (FAILED, ended(Cause.COMMAND), Left("failed", 0.0, "the loss is not a number", True), Action.FAIL, "the loss is not a number"),
        (FAILED, ended(Cause.COMMAND), OLD, Action.FAIL, "its command failed (WORDS)"),
        (FAILED, None, None, Action.FAIL, "its command failed"),
        (None, ended(Cause.SIGNAL, signal=9), None, Action.FAIL, "killed by signal 9, cause unknown (WORDS)"),
        (End(137, "", 1, 2, "n"), None, None, Action.FAIL, "killed by signal 9, cause unknown"),
        (TERMINATED, None, None, Action.FAIL, "ended after signal TERM, cause unknown"),
        (None, ended(Cause.UNKNOWN), None, Action.FAIL, "ended, cause unknown (WORDS)"),
    ],
)  # fmt: skip
def test_an_end_is_answered_by_its_cause(
    end: End | None, status: Status | None, left: Left | None, action: Action, sentence: str
) -> None:
    judged = verdict(end, status, left, [link()], ASKED)
    assert (judged.action, judged.cause) == (action, sentence)


def test_a_job_that_began_and_left_no_end_has_finished_where_the_scheduler_says_so() -> None:
    judged = verdict(None, ended(Cause.FINISHED), None, [link()], ASKED, began_s=100.0)
    assert (judged.action, judged.cause) == (Action.SUCCEED, "finished, by the scheduler's record")


def test_two_links_in_a_row_without_progress_are_a_failure() -> None:
    before = [link(100.0, "the deadline is near"), link(100.0, "the deadline is near")]
    judged = verdict(FAILED, None, SAVED, [*before, link()], ASKED)
    assert judged.action is Action.FAIL
    assert judged.cause == "2 links in a row made no progress; the last: the deadline is near (progress 100)"


def test_one_link_without_progress_is_forgiven() -> None:
    assert verdict(FAILED, None, SAVED, [link(100.0, "the deadline is near"), link()], ASKED).action is Action.GO_ON


def test_progress_after_a_fruitless_link_starts_the_count_anew() -> None:
    before = [link(50.0, "x"), link(50.0, "x"), link(80.0, "x")]
    assert verdict(FAILED, None, Left("checkpointed", 80.0, "x", True), [*before, link()], ASKED).action is Action.GO_ON


def test_a_node_that_fails_twice_is_a_failure() -> None:
    judged = verdict(None, ended(Cause.NODE), None, [link(cause="x", node_fault=True), link()], ASKED)
    assert (judged.action, judged.cause) == (Action.FAIL, "the node or its software failed (WORDS), again")


def test_a_job_that_a_restarted_scheduler_started_again_and_deleted_is_tried_once_more() -> None:
    status = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED, started_s=106.0)
    judged = verdict(TERMINATED, status, None, [link()], ASKED, began_s=100.0)
    assert (judged.action, judged.node_fault) == (Action.GO_ON, True)
    assert judged.cause == "the scheduler had forgotten that the job runs, started it again, and deleted it (CANCELLED)"
    assert verdict(TERMINATED, status, None, [link(node_fault=True), link()], ASKED, 100.0).action is Action.FAIL


@pytest.mark.parametrize("began_s", [105.0, 106.0, 110.0, None])
def test_a_job_that_began_when_its_scheduler_says_was_cancelled_by_a_person(began_s: float | None) -> None:
    status = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED, started_s=106.0)
    judged = verdict(TERMINATED, status, None, [link()], ASKED, began_s)
    assert (judged.action, judged.cause) == (Action.FAIL, "cancelled by its owner or an administrator (CANCELLED)")


def test_a_job_that_a_restarted_scheduler_deleted_on_its_nodes_before_it_began_is_tried_once_more() -> None:
    status = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED, nodes=("node2",), started_s=106.0)
    judged = verdict(None, status, None, [link()], ASKED)
    assert (judged.action, judged.node_fault) == (Action.GO_ON, True)
    assert judged.cause == "deleted after it had been given node2, before its script began (CANCELLED)"


def test_a_job_that_was_terminated_and_that_its_scheduler_does_not_know_is_tried_once_more() -> None:
    judged = verdict(TERMINATED, None, None, [link()], ASKED, 100.0, forgotten=True)
    assert (judged.action, judged.node_fault) == (Action.GO_ON, True)
    assert judged.cause == "ended by signal TERM, and the scheduler does not know that it ran: it forgot the job"
    assert verdict(FAILED, None, None, [link()], ASKED, 100.0, forgotten=True).action is Action.FAIL
