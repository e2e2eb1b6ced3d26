"""What follows from each end of a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.job import Action, Decision, JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.records import Attempt
from snakemake_executor_plugin_multinode.schedulers import Cause, Request, State, Status
from snakemake_executor_plugin_multinode.status_files import End, RunState
from snakemake_executor_plugin_multinode.verdict import verdict
from test_decide import FAILED, TERMINATED, Known

SAVED = RunState("checkpointed", 100.0, "the deadline is near", True)
OLD = RunState("checkpointed", 100.0, "the deadline is near", False)
RUNNING = RunState("running", 40.0, "saved after step 40", True)


def attempt(progress: float | None = None, cause: str = "", node_fault: bool = False) -> Attempt:
    return Attempt("n", "1", 0.0, cause=cause, progress=progress, node_fault=node_fault)


def judged_of(
    end: End | None, status: Status | None, run: RunState | None, attempts: list[Attempt], **more: Any
) -> Decision:
    """The verdict on a job with 60 minutes, by default, after so many answers of its scheduler without it."""
    asked = Request("", Path(), Path(), more.get("nodes", 1), 1, 0, 1, 4000, more.get("runtime_min", 60), None)
    state = JobState(Phase.ENDING, 0.0, status, more.get("answers", 0), end=end)
    known = Known(end, None, 0.0, more.get("ran_s"), run or RunState())
    job = MonitoredJob(None, "k", "train a", "train", (), asked, lambda _: None)
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
        (None, ended(Cause.WALLTIME), RUNNING, Action.CONTINUE, "the walltime of 60 min was reached (WORDS): saved after step 40 (progress 40)"),
        (None, ended(Cause.WALLTIME), RunState("running", 40.0, "saved after step 40", False), Action.CONTINUE, "the walltime of 60 min was reached before a checkpoint (WORDS), without progress"),
        (FAILED, ended(Cause.COMMAND), RUNNING, Action.FAIL, "its command failed"),
        (FAILED, ended(Cause.MEMORY), None, Action.FAIL, "out of memory (WORDS): raise the resource `mem_mb`, now 4000 MiB per node"),
        (FAILED, ended(Cause.MEMORY), SAVED, Action.FAIL, "out of memory (WORDS): raise the resource `mem_mb`, now 4000 MiB per node"),
        (None, ended(Cause.PREEMPTED), None, Action.CONTINUE, "preempted (WORDS), without progress"),
        (None, ended(Cause.PREEMPTED), RUNNING, Action.CONTINUE, "preempted (WORDS) (progress 40)"),
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


BY_TIMES = (
    "the walltime of 60 min was reached (by its start and its end; the scheduler says nothing of it): "
    "saved after step 40 (progress 40)"
)
EARLY = (
    "ended by signal TERM before its walltime, and the scheduler has no record of it: deleted by somebody, or preempted; "
    "it has saved, and the same command resumes it"
)


@pytest.mark.parametrize(
    ("end", "run", "ran_s", "runtime_min", "outcome", "sentence"),
    [
        # ran as long as it might
        (TERMINATED, RUNNING, 3600.0, 60, Action.CONTINUE, BY_TIMES),
        (None, RUNNING, 3545.0, 60, Action.CONTINUE, BY_TIMES),
        # terminated early: deleted, unless it has no walltime
        (TERMINATED, SAVED, 100.0, 60, Action.FAIL, EARLY),
        (TERMINATED, SAVED, 9.0, None, Action.CONTINUE, "the deadline is near (progress 100)"),
    ],
)
def test_where_the_scheduler_keeps_no_record_the_times_of_the_job_decide(
    end: End | None, run: RunState, ran_s: float, runtime_min: int | None, outcome: Action, sentence: str
) -> None:
    judged = judged_of(end, None, run, [attempt()], ran_s=ran_s, runtime_min=runtime_min, answers=2)
    assert (judged.action, judged.why) == (outcome, sentence)


def test_of_several_nodes_none_is_named_since_it_is_not_known_which_failed() -> None:
    end = End(78, "", 1, 2, "n1", "node n2 could not be started")
    judged = [judged_of(end, None, None, [attempt()], nodes=nodes) for nodes in (1, 2)]
    assert [decision.host for decision in judged] == ["n1", ""]
    assert [decision.why for decision in judged] == [f"{end.fault} (on n1)", end.fault]


def test_a_fault_of_a_node_is_forgiven_once() -> None:
    first = judged_of(None, ended(Cause.NODE), None, [attempt()])
    assert (first.action, first.node_fault) == (Action.CONTINUE, True)
    judged = judged_of(None, ended(Cause.NODE), None, [attempt(node_fault=True), attempt()])
    assert (judged.action, judged.why) == (Action.FAIL, "the node or its software failed (WORDS), again")


@pytest.mark.parametrize(
    ("cause", "outcome", "node_fault"),
    [
        (Cause.MEMORY, Action.FAIL, False),
        (Cause.WALLTIME, Action.FAIL, False),
        (Cause.NODE, Action.CONTINUE, True),
        (Cause.CANCELLED, Action.START_OVER, False),
        (Cause.SIGNAL, Action.START_OVER, False),
        (Cause.COMMAND, Action.START_OVER, False),  # Grid Engine, where the site has qdel send TERM
    ],
)
def test_a_job_whose_deletion_had_no_effect_is_judged_by_what_ended_it(
    cause: Cause, outcome: Action, node_fault: bool
) -> None:
    judged = judged_of(TERMINATED, ended(cause), None, [replace(attempt(), cancelled=True)])
    assert (judged.action, judged.node_fault) == (outcome, node_fault)


def test_two_attempts_in_a_row_without_progress_are_a_failure() -> None:
    before = [attempt(100.0, "the deadline is near"), attempt(100.0, "the deadline is near")]
    judged = judged_of(FAILED, None, SAVED, [*before, attempt()])
    assert judged.action is Action.FAIL
    assert judged.why == "2 attempts in a row made no progress; the last: the deadline is near (progress 100)"
