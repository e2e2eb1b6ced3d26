"""What is done next about a job: one table row for each state that it can be in, with the clock and the evidence given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.decide import Limits, decide
from snakemake_executor_plugin_multinode.job import Action, JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.records import Attempt
from snakemake_executor_plugin_multinode.schedulers import Cause, Request, State, Status
from snakemake_executor_plugin_multinode.status_files import Began, End, RunState

LIMITS = Limits(poll_s=10, settle_s=15, lost_s=30)
ASKED = Request("", Path(), Path(), 1, 1, 0, 1, None, None, None)
WELL = End(0, "", 100, 200, "node1")
FAILED = End(1, "", 100, 200, "node1")
TERMINATED = End(1, "TERM", 100, 200, "node1")
NO_STATE = RunState()
SAVED = RunState("checkpointed", 5.0, "the deadline is near", True)
QUEUED = Status("1", State.QUEUED, "PENDING")
RUNNING = Status("1", State.RUNNING, "RUNNING")
TIMEOUT = Status("1", State.ENDED, "TIMEOUT", Cause.WALLTIME)
CANCELLED = Status("1", State.ENDED, "CANCELLED", Cause.CANCELLED)
COMPLETED = Status("1", State.ENDED, "COMPLETED", Cause.FINISHED)


@dataclass(frozen=True)
class Known:
    """Evidence as a test wants it."""

    end: End | None = None
    began: Began | None = None
    silent_s: float = 0.0
    ran_s: float | None = None
    run_state: RunState = NO_STATE
    ended_before_driver: bool = False


BEGAN = Began(100, "node1")
BEGAN_AGAIN = Began(900, "node2")
NOTHING = Known()


def job(state: JobState, adopted: bool = False, job_id: str | None = "1", cancelled: bool = False) -> MonitoredJob:
    made = MonitoredJob(None, "k", "train a", "train", (), ASKED, lambda _: None)
    made.record.attempts.append(Attempt("train.a.1", job_id, 0.0, cancelled=cancelled))
    made.state, made.adopted = state, adopted
    return made


def ending(
    since_s: float, end: End | None = None, status: Status | None = None, asked_s: float = 0.0, answers: int = 0
) -> JobState:
    return JobState(Phase.ENDING, since_s, status, answers, asked_s, end)


def missing(since_s: float, answers: int = 5, forbidden: bool | None = None) -> JobState:
    return JobState(Phase.MISSING, since_s, answers=answers, forbidden=forbidden)


def submitted() -> JobState:
    return JobState(Phase.SUBMITTED, 0.0)


def alive(status: Status = RUNNING) -> JobState:
    return JobState(Phase.ALIVE, 0.0, status)


@pytest.mark.parametrize(
    ("state", "known", "now_s", "action"),
    [
        # nothing heard of it
        (submitted(), NOTHING, 1e6, Action.WAIT),
        (submitted(), Known(end=WELL, began=BEGAN), 1.0, Action.SUCCEED),
        (submitted(), Known(end=FAILED, began=BEGAN), 1.0, Action.WAIT),
        (submitted(), Known(end=FAILED, began=BEGAN_AGAIN), 1.0, Action.WAIT),
        # queued or running
        (alive(QUEUED), NOTHING, 1e6, Action.WAIT),
        (alive(), NOTHING, 1e6, Action.WAIT),
        (alive(), Known(end=WELL, began=BEGAN), 1.0, Action.SUCCEED),
        # unknown to its scheduler
        (missing(0.0, answers=1), NOTHING, 1e6, Action.WAIT),
        (missing(0.0), NOTHING, 29.0, Action.WAIT),
        (missing(0.0), NOTHING, 30.0, Action.FORBID),
        (missing(0.0), Known(began=BEGAN, silent_s=119.0), 1e6, Action.WAIT),
        (missing(0.0), Known(began=BEGAN, silent_s=121.0), 30.0, Action.CONTINUE),
        (missing(0.0, forbidden=True), NOTHING, 30.0, Action.FAIL),
        (replace(missing(0.0, forbidden=True), history=True), NOTHING, 30.0, Action.RESUBMIT),
        (missing(0.0, forbidden=False), NOTHING, 60.0, Action.WAIT),
        (missing(0.0, forbidden=False), NOTHING, 61.0, Action.CONTINUE),
        (missing(0.0), Known(end=WELL, began=BEGAN), 1e6, Action.SUCCEED),
        # ended, by its own word
        (ending(0.0, FAILED), Known(end=FAILED, began=BEGAN), 14.0, Action.WAIT),
        (ending(0.0, FAILED), Known(end=FAILED, began=BEGAN), 15.0, Action.FAIL),
        (ending(0.0, TERMINATED), Known(end=TERMINATED, began=BEGAN), 1e6, Action.WAIT),
        (ending(0.0, TERMINATED, asked_s=1.0, answers=1), Known(end=TERMINATED, began=BEGAN), 20.0, Action.WAIT),
        (ending(0.0, TERMINATED, asked_s=1.0, answers=2), Known(end=TERMINATED, began=BEGAN), 14.0, Action.WAIT),
        (ending(0.0, TERMINATED, asked_s=1.0, answers=2), Known(end=TERMINATED, began=BEGAN), 15.0, Action.FAIL),
        (ending(0.0, FAILED, RUNNING, asked_s=1.0), Known(end=FAILED, began=BEGAN), 119.0, Action.WAIT),
        (ending(0.0, FAILED, RUNNING, asked_s=1.0), Known(end=FAILED, began=BEGAN), 120.0, Action.FAIL),
        (ending(0.0, FAILED, QUEUED, asked_s=1.0), Known(end=FAILED, began=BEGAN), 2.0, Action.REQUEUED),
        (ending(5.0, FAILED, QUEUED, asked_s=1.0), Known(end=FAILED, began=BEGAN), 6.0, Action.WAIT),
        (ending(0.0, FAILED), Known(began=BEGAN_AGAIN), 1e6, Action.REQUEUED),
        (ending(0.0, FAILED, None), Known(began=BEGAN, run_state=SAVED), 1.0, Action.WAIT),
        (ending(0.0, FAILED, None, asked_s=1.0), Known(began=BEGAN, run_state=SAVED), 2.0, Action.CONTINUE),
        (ending(0.0, FAILED, RUNNING, asked_s=1.0), Known(began=BEGAN, run_state=SAVED), 2.0, Action.CONTINUE),
        (ending(0.0, FAILED, QUEUED, asked_s=1.0), Known(began=BEGAN, run_state=SAVED), 2.0, Action.REQUEUED),
        # ended, by its scheduler's word only
        (ending(0.0, None, TIMEOUT), Known(began=BEGAN), 14.0, Action.WAIT),
        (ending(0.0, None, TIMEOUT), Known(began=BEGAN), 15.0, Action.FAIL),
        (ending(0.0, None, TIMEOUT), Known(end=WELL, began=BEGAN), 3.0, Action.SUCCEED),
        (ending(0.0, None, COMPLETED), Known(began=BEGAN), 15.0, Action.SUCCEED),
    ],
)  # fmt: skip
def test_each_state_of_a_job_has_its_next_action(state: JobState, known: Known, now_s: float, action: Action) -> None:
    assert decide(job(state), known, now_s, LIMITS).action is action


@pytest.mark.parametrize(
    ("state", "known", "now_s", "action"),
    [
        (submitted(), Known(end=WELL, began=BEGAN), 1.0, Action.SUCCEED),
        (submitted(), Known(end=WELL, began=BEGAN, ended_before_driver=True), 1.0, Action.START_OVER),
        (missing(0.0, forbidden=True), NOTHING, 30.0, Action.RESUBMIT),
        (ending(0.0, TERMINATED, CANCELLED), Known(began=BEGAN), 1.0, Action.FAIL),
    ],
)
def test_a_job_that_a_driver_before_submitted(state: JobState, known: Known, now_s: float, action: Action) -> None:
    assert decide(job(state, adopted=True), known, now_s, LIMITS).action is action


@pytest.mark.parametrize(
    ("state", "known", "now_s", "action"),
    [
        (submitted(), Known(end=WELL, began=BEGAN), 1.0, Action.SUCCEED),
        (ending(0.0, TERMINATED, CANCELLED), Known(began=BEGAN), 1.0, Action.START_OVER),
        (ending(0.0, TERMINATED), Known(began=BEGAN), 15.0, Action.START_OVER),
        (ending(0.0, TERMINATED, asked_s=1.0, answers=1), Known(began=BEGAN), 3.0, Action.WAIT),
        (ending(0.0, TERMINATED, asked_s=1.0, answers=2), Known(began=BEGAN), 5.0, Action.START_OVER),
        (ending(0.0, FAILED), Known(began=BEGAN), 15.0, Action.FAIL),
        (ending(0.0, None, CANCELLED), NOTHING, 15.0, Action.START_OVER),
        (missing(0.0), Known(began=BEGAN, silent_s=1.0), 1e6, Action.WAIT),
        (missing(0.0), Known(began=BEGAN, silent_s=121.0), 30.0, Action.START_OVER),
        (missing(0.0, forbidden=True), NOTHING, 30.0, Action.RESUBMIT),
    ],
)
def test_a_job_whose_deletion_was_asked_for(state: JobState, known: Known, now_s: float, action: Action) -> None:
    assert decide(job(state, adopted=True, cancelled=True), known, now_s, LIMITS).action is action
