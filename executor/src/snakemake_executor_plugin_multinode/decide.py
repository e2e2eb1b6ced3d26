"""Decide the next action on a job: pure functions of its state, the evidence and the time.

Truth comes in this order: the job script's own files, the scheduler's record, silence. A query that fails, times
out or returns something unreadable changes nothing. A job counts as lost only when the scheduler has
answered twice without it, over a longer time than a shared file system may take to show a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from snakemake_executor_plugin_multinode.job import Action, Decision, JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.jobscript import BEAT_S
from snakemake_executor_plugin_multinode.observe import Evidence
from snakemake_executor_plugin_multinode.schedulers import State, Status
from snakemake_executor_plugin_multinode.status_files import Began, End, RunState
from snakemake_executor_plugin_multinode.verdict import LOST_ANSWERS, verdict

SILENT_S = 4 * BEAT_S
"""Seconds without a heartbeat after which a job counts as silent."""
COMPLETING_S = 120.0
"""How long a scheduler may report a job as running after its script has ended: it copies output back, or hangs."""
WAITS = (State.QUEUED, State.HELD)


@dataclass(frozen=True)
class Limits:
    """Timeouts, in seconds, and permitted features."""

    poll_s: float = 10.0
    """Between two queries to the scheduler."""
    settle_s: float = 15.0
    """How long a file written on a node may take to appear here, and the scheduler to know why a job ended."""
    lost_s: float = 30.0
    """How long the scheduler must not know a job before the job counts as lost."""
    per_s: float = 5.0
    """Most submissions per second."""
    budget_gpu_hours: float | None = None


def apply_status(state: JobState, status: Status | None, asked_s: float, now_s: float) -> JobState:
    """The state after an answer of the scheduler; None: it does not know the job."""
    if status is not None and status.state is State.UNANSWERED:
        return state
    if state.phase is Phase.ENDING:
        return _apply_status_to_end(state, status, asked_s, now_s)
    phase = Phase.MISSING
    if status is not None:
        phase = Phase.ENDING if status.state is State.ENDED else Phase.ALIVE
    if state.phase is not phase:
        return JobState(phase, now_s, status, int(status is None), asked_s)
    return replace(state, status=status, answers=state.answers + (status is None), asked_s=asked_s)


def _apply_status_to_end(state: JobState, status: Status | None, asked_s: float, now_s: float) -> JobState:
    if status is None:  # a record that is purged later still holds
        last_status = state.status if state.reported is State.ENDED else None
        return replace(state, status=last_status, answers=state.answers + 1, asked_s=asked_s)
    if state.end is None and status.state is not State.ENDED:  # requeued, by its scheduler alone
        return JobState(Phase.ALIVE, now_s, status, asked_s=asked_s)
    return replace(state, status=status, answers=0, asked_s=asked_s)


def decide(job: MonitoredJob, evidence: Evidence, now_s: float, limits: Limits) -> Decision:
    """Return the next action on a submitted job."""
    end = evidence.end
    if end is not None and begun_again(end, evidence.began):
        end = None  # of an earlier start; a network file system may show it for a while
    state = _with_end(job.state, end, now_s)
    match state.phase:
        case Phase.ENDING if state.end is not None and begun_again(state.end, evidence.began):
            return _requeued(state, now_s)
        case Phase.ENDING:
            return _ending(job, state, evidence, now_s, limits)
        case Phase.MISSING:
            return _missing(job, state, evidence, now_s, limits)
    return Decision(Action.WAIT, state)


def begun_again(end: End, began: Began | None) -> bool:
    """Whether a job has been started a second time, after the end given."""
    return began is not None and began.began_s != end.began_s


def _with_end(state: JobState, end: End | None, now_s: float) -> JobState:
    """The state after the job script's own record of its end was found."""
    if end is None or end == state.end:
        return state
    if state.phase is Phase.ENDING:
        return replace(state, end=end)
    return JobState(Phase.ENDING, now_s, None, asked_s=state.asked_s, end=end)


def _requeued(state: JobState, now_s: float) -> Decision:
    alive = state.reported not in (None, State.ENDED)
    after = JobState(Phase.ALIVE if alive else Phase.SUBMITTED, now_s, state.status if alive else None)
    return Decision(Action.REQUEUED, after)


def _ending(job: MonitoredJob, state: JobState, evidence: Evidence, now_s: float, limits: Limits) -> Decision:
    """The script or the scheduler reports the end; the scheduler may know the cause of a failure."""
    end = state.end
    if end is not None and end.code == 0:
        if job.adopted and evidence.ended_before_driver:
            # It had ended before this driver started, and Snakemake wants it to run again.
            return Decision(Action.START_OVER, state, "finished")
        return verdict(job, state, evidence)
    answered = state.asked_s > state.since_s
    over = state.reported is State.ENDED
    alive = answered and state.status is not None and not over
    if alive and state.reported in WAITS:
        return _requeued(state, now_s)
    # Of a job whose deletion was asked for no cause needs to be known: it is gone, and is made again.
    gone = job.attempt.cancelled and answered and state.status is None and state.answers >= LOST_ANSWERS
    if end is not None and (over or gone or (answered and _stopped_on_its_own(end, evidence.run_state))):
        return verdict(job, state, evidence)
    if now_s - state.since_s >= _patience_s(job, state, answered, alive, limits):
        return replace(verdict(job, state, evidence), delete=alive)
    return Decision(Action.WAIT, state)


def _patience_s(job: MonitoredJob, state: JobState, answered: bool, alive: bool, limits: Limits) -> float:
    """How long the scheduler's word about an end is waited for.

    TERM may have been anybody's, so that nothing follows from it before the scheduler has answered.
    """
    unsure = answered and state.status is None and state.answers < LOST_ANSWERS
    if alive or unsure:
        return COMPLETING_S
    terminated = state.end is not None and state.end.signal == "TERM"
    return math.inf if terminated and not answered and not job.attempt.cancelled else limits.settle_s


def _stopped_on_its_own(end: End, run: RunState) -> bool:
    return run.fresh and run.state == "checkpointed" and not end.signal


def _missing(job: MonitoredJob, state: JobState, evidence: Evidence, now_s: float, limits: Limits) -> Decision:
    """The scheduler does not know the job, and its script has not recorded an end."""
    missing_s = now_s - state.since_s
    if state.answers < LOST_ANSWERS or missing_s < limits.lost_s:
        return Decision(Action.WAIT, state)
    if evidence.began is not None:
        # With a recent heartbeat it is running, although its scheduler has lost it.
        return verdict(job, state, evidence) if evidence.silent_s > SILENT_S else Decision(Action.WAIT, state)
    if state.forbidden is None:
        return Decision(Action.FORBID, state)
    if state.forbidden:
        return _never_began(job, state)
    # It is starting at this moment, or died while starting.
    return verdict(job, state, evidence) if missing_s > 2 * limits.lost_s else Decision(Action.WAIT, state)


def _never_began(job: MonitoredJob, state: JobState) -> Decision:
    """It is not in the queue, and has been forbidden to start."""
    if job.attempt.id is None:
        return Decision(Action.RESUBMIT, state, "was not submitted")
    lost = state.history and not any(attempt.never_ran and attempt.id for attempt in job.record.attempts)
    if job.adopted or job.attempt.cancelled or lost:
        return Decision(Action.RESUBMIT, state, "left the queue without a trace")
    return Decision(Action.FAIL, state, "left the queue without having begun: deleted, or lost by the scheduler")
