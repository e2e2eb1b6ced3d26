"""What follows from each end of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.job import Action, Decision, JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.records import Attempt
from snakemake_executor_plugin_multinode.runstate import RunState
from snakemake_executor_plugin_multinode.schedulers import Cause, Request, State, Status
from snakemake_executor_plugin_multinode.status_files import Began, End
from snakemake_executor_plugin_multinode.verdict import verdict
from test_decide import FAILED, TERMINATED, Known

SAVED = RunState("checkpointed", 100.0, "the deadline is near", True)
OLD = RunState("checkpointed", 100.0, "the deadline is near", False)


def attempt(progress: float | None = None, cause: str = "", node_fault: bool = False) -> Attempt:
    return Attempt("n", "1", 0.0, cause=cause, progress=progress, node_fault=node_fault)


def judged_of(
    end: End | None, status: Status | None, run: RunState | None, attempts: list[Attempt], **more: Any
) -> Decision:
    """The verdict on a job with 60 minutes; `forgotten` and `unrecorded` say what its scheduler keeps of jobs."""
    asked = Request("a", Path("/s"), Path("/l"), more.get("nodes", 1), 1, 0, 1, 4000, more.get("runtime_min", 60), None)
    answers = 2 if more.get("forgotten") or more.get("unrecorded") else 0
    state = JobState(Phase.ENDING, 0.0, status, answers, end=end)
    began = Began(more["began_s"], "") if "began_s" in more else None
    known = Known(end, began, 0.0, more.get("ran_s"), run or RunState(), keeps_history="forgotten" in more)
    job = MonitoredJob(None, "k", "train a", "train", (), lambda *_: asked, lambda _: None)
    job.record.attempts += attempts
    return verdict(job, state, known)  # type: ignore[arg-type]


def ended(cause: Cause, words: str = "WORDS", signal: int | None = None) -> Status:
    return Status("1", State.ENDED, words, cause, signal)


@pytest.mark.parametrize(
    ("end", "status", "run", "outcome", "sentence"),
    [
        (End(0, "", 1, 2, "n"), None, None, Action.SUCCEED, "finished"),
        (End(0, "TERM", 1, 2, "n"), ended(Cause.CANCELLED), None, Action.SUCCEED, "finished"),
        (None, ended(Cause.FINISHED), None, Action.CONTINUE, "its script never started, although the scheduler reports success (WORDS)"),
        (FAILED, None, SAVED, Action.CONTINUE, "the deadline is near (progress 100)"),
        (FAILED, ended(Cause.COMMAND), SAVED, Action.CONTINUE, "the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.WALLTIME), SAVED, Action.CONTINUE, "the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.PREEMPTED), SAVED, Action.CONTINUE, "preempted (WORDS): the deadline is near (progress 100)"),
        (TERMINATED, ended(Cause.CANCELLED), SAVED, Action.FAIL, "cancelled by its owner or an administrator (WORDS)"),
        (None, ended(Cause.WALLTIME), OLD, Action.CONTINUE, "the walltime of 60 min was reached before a checkpoint (WORDS), without progress"),
        (None, ended(Cause.WALLTIME), None, Action.FAIL, "the walltime of 60 min was reached (WORDS), and it leaves no checkpoint: raise the resource `runtime`"),
        (None, ended(Cause.WALLTIME), RunState("running", 40.0, "saved after step 40", True), Action.CONTINUE, "the walltime of 60 min was reached (WORDS): saved after step 40 (progress 40)"),
        (None, ended(Cause.WALLTIME), RunState("running", 40.0, "saved after step 40", False), Action.CONTINUE, "the walltime of 60 min was reached before a checkpoint (WORDS), without progress"),
        (FAILED, ended(Cause.COMMAND), RunState("running", 40.0, "saved after step 40", True), Action.FAIL, "its command failed"),
        (FAILED, ended(Cause.MEMORY), None, Action.FAIL, "out of memory (WORDS): raise the resource `mem_mb`, now 4000 MiB per node"),
        (FAILED, ended(Cause.MEMORY), SAVED, Action.FAIL, "out of memory (WORDS): raise the resource `mem_mb`, now 4000 MiB per node"),
        (None, ended(Cause.PREEMPTED), None, Action.CONTINUE, "preempted (WORDS), without progress"),
        (None, ended(Cause.PREEMPTED), RunState("running", 40.0, "saved after step 40", True), Action.CONTINUE, "preempted (WORDS) (progress 40)"),
        (None, ended(Cause.NODE), None, Action.CONTINUE, "the node or its software failed (WORDS)"),
        (None, None, None, Action.CONTINUE, "lost: it began, left no exit status, and the scheduler no longer knows it"),
        (FAILED, ended(Cause.COMMAND), RunState("failed", 0.0, "the loss is not a number", True), Action.FAIL, "the loss is not a number"),
        (FAILED, ended(Cause.COMMAND), OLD, Action.FAIL, "its command failed"),
        (FAILED, None, None, Action.FAIL, "its command failed"),
        (None, ended(Cause.SIGNAL, signal=9), None, Action.FAIL, "killed by signal 9, cause unknown (WORDS)"),
        (End(137, "", 1, 2, "n"), None, None, Action.FAIL, "killed by signal 9, cause unknown"),
        (TERMINATED, None, None, Action.FAIL, "ended after signal TERM, cause unknown"),
        (None, ended(Cause.UNKNOWN), None, Action.FAIL, "ended, cause unknown (WORDS)"),
    ],
)  # fmt: skip
def test_an_end_is_answered_by_its_cause(
    end: End | None, status: Status | None, run: RunState | None, outcome: Action, sentence: str
) -> None:
    judged = judged_of(end, status, run, [attempt()])
    assert (judged.action, judged.why) == (outcome, sentence)


RUNNING = RunState("running", 40.0, "saved after step 40", True)
DELETED = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED, started_s=106.0)
DELETED_ON = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED, nodes=("node2",), started_s=106.0)
BY_TIMES = (
    "the walltime of 60 min was reached (by its start and its end; the scheduler says nothing of it): "
    "saved after step 40 (progress 40)"
)
EARLY = (
    "ended by signal TERM before its walltime, and the scheduler has no record of it: deleted by somebody, or preempted; "
    "it has saved, and the same command resumes it"
)
RELAUNCHED = "the scheduler had forgotten that the job runs, started it again, and deleted it (CANCELLED)"
FORGOT = "ended by signal TERM, and the scheduler does not know that it ran: it forgot the job"
BY_A_PERSON = "cancelled by its owner or an administrator (CANCELLED)"
AGAIN = (Action.CONTINUE, True)
FAILS, GOES_ON = (Action.FAIL, False), (Action.CONTINUE, False)


@pytest.mark.parametrize(
    ("end", "status", "run", "more", "outcome", "sentence"),
    [
        (None, ended(Cause.FINISHED), None, {"began_s": 100.0}, (Action.SUCCEED, False), "finished, by the scheduler's record"),
        # ran as long as it might, although its scheduler keeps no record
        (TERMINATED, None, RUNNING, {"ran_s": 3600.0, "unrecorded": True}, GOES_ON, BY_TIMES),
        (None, None, RUNNING, {"ran_s": 3545.0, "unrecorded": True}, GOES_ON, BY_TIMES),
        # terminated early where no record is kept: deleted, unless it has no walltime
        (TERMINATED, None, SAVED, {"ran_s": 100.0, "unrecorded": True}, FAILS, EARLY),
        (TERMINATED, None, SAVED, {"ran_s": 9.0, "unrecorded": True, "runtime_min": None}, GOES_ON, "the deadline is near (progress 100)"),
        # a restarted scheduler started it again and deleted it, or deleted it on its nodes before it began
        (TERMINATED, DELETED, None, {"began_s": 100.0}, AGAIN, RELAUNCHED),
        (TERMINATED, DELETED, None, {"began_s": 105.0}, FAILS, BY_A_PERSON),
        (TERMINATED, DELETED, None, {"began_s": 110.0}, FAILS, BY_A_PERSON),
        (TERMINATED, DELETED, None, {}, FAILS, BY_A_PERSON),
        (None, DELETED_ON, None, {}, AGAIN, "deleted after it had been given node2, before its script began (CANCELLED)"),
        # terminated, and a scheduler that would know it does not
        (TERMINATED, None, None, {"began_s": 100.0, "forgotten": True}, AGAIN, FORGOT),
        (FAILED, None, None, {"began_s": 100.0, "forgotten": True}, FAILS, "its command failed"),
        (End(78, "", 1, 2, "n", "the set-up failed"), None, None, {}, AGAIN, "the set-up failed (on n)"),
    ],
)  # fmt: skip
def test_what_the_scheduler_lost_or_never_kept_is_answered_by_the_times_of_the_job(
    end: End | None,
    status: Status | None,
    run: RunState | None,
    more: dict[str, Any],
    outcome: tuple[Action, bool],
    sentence: str,
) -> None:
    judged = judged_of(end, status, run, [attempt()], **more)
    assert ((judged.action, judged.node_fault), judged.why) == (outcome, sentence)


def test_of_several_nodes_none_is_named_since_it_is_not_known_which_failed() -> None:
    end = End(78, "", 1, 2, "n1", "node n2 could not be started")
    judged = judged_of(end, None, None, [attempt()], nodes=2)
    assert (judged.action, judged.why, judged.host) == (Action.CONTINUE, "node n2 could not be started", "")


def test_a_fault_of_a_node_is_forgiven_once() -> None:
    judged = judged_of(None, ended(Cause.NODE), None, [attempt(node_fault=True), attempt()])
    assert (judged.action, judged.why) == (Action.FAIL, "the node or its software failed (WORDS), again")


def test_two_attempts_in_a_row_without_progress_are_a_failure() -> None:
    before = [attempt(100.0, "the deadline is near"), attempt(100.0, "the deadline is near")]
    judged = judged_of(FAILED, None, SAVED, [*before, attempt()])
    assert judged.action is Action.FAIL
    assert judged.why == "2 attempts in a row made no progress; the last: the deadline is near (progress 100)"
