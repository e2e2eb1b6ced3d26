"""The verdict on a job's end, and the action on it. Pure: no files, no scheduler."""

from __future__ import annotations

from snakemake_executor_plugin_multinode.job import Action, Decision, JobState, MonitoredJob
from snakemake_executor_plugin_multinode.observe import Evidence
from snakemake_executor_plugin_multinode.schedulers import Cause, State, Status
from snakemake_executor_plugin_multinode.status_files import Began, End

LOST_ANSWERS = 2
"""A job that so many answers in a row do not have is unknown to its scheduler."""
FRUITLESS_ATTEMPTS = 2
"""So many attempts in a row without progress are a failure."""
NODE_RETRIES = 1
NO_DELETION = (Cause.MEMORY, Cause.WALLTIME, Cause.NODE, Cause.PREEMPTED)
"""Causes of an end that is not the requested deletion: that had no effect."""
WALLTIME_MARGIN_S, WALLTIME_MARGIN = 60.0, 0.1
"""A job that ran to within so many seconds of its walltime, or such a share of a short one, was over its walltime: its last
heartbeat is up to half a minute old."""


class Ending:
    """The end of the last of a job's attempts that ran, with all evidence on it."""

    def __init__(self, job: MonitoredJob, state: JobState, evidence: Evidence) -> None:
        self.state, self.end, self.status, self.run = state, state.end, state.status, evidence.run_state
        self.attempts = [attempt for attempt in job.record.attempts if not attempt.never_ran]
        self.mem_mb = job.request.mem_mb if job.request is not None else None
        self.runtime_min = job.request.runtime_min if job.request is not None else None
        self.began = evidence.began
        self.ran_s = evidence.ran_s
        several = job.request is not None and job.request.nodes > 1
        self.host = "" if several else host_of(self.status, self.end, self.began)
        self.cause = self.status.cause if self.status is not None and state.reported is State.ENDED else None
        self.words = self.status.words if self.status is not None else ""
        self.signal = self.end.signal if self.end is not None else ""
        self.own_state, self.progress = (self.run.state, self.run.progress) if self.run.fresh else ("", None)
        """By the run's own file, where this attempt wrote it."""
        self.unrecorded = self.status is None and state.answers >= LOST_ANSWERS
        """The scheduler has answered, and keeps no record of jobs that are over."""

    def decision(self, action: Action, why: str, node_fault: bool = False) -> Decision:
        """SUCCEED, CONTINUE (from a checkpoint, or on another node) or FAIL, and the reason, in a sentence."""
        return Decision(action, self.state, why, node_fault, self.progress, self.host)


def verdict(job: MonitoredJob, state: JobState, evidence: Evidence) -> Decision:
    """Return the action after an end without further evidence to come."""
    e = Ending(job, state, evidence)
    judged = _judged(e)
    cancelled = job.attempt.cancelled and e.cause not in NO_DELETION and not _failed_by_itself(e)
    if cancelled and judged.action is not Action.SUCCEED:
        return Decision(Action.START_OVER, state, "cancelled by its driver")
    return judged


def host_of(status: Status | None, end: End | None, began: Began | None) -> str:
    """The node of a job, if there was only one and it is known: of several nodes it is not known which failed."""
    if status is not None and len(status.nodes) == 1:
        return "" if set(status.nodes[0]) & set("[,") else status.nodes[0]
    return end.host if end is not None else began.host if began is not None else ""


def _judged(e: Ending) -> Decision:
    if e.end is not None and (e.end.code == 0 or e.end.fault):
        why = f"{e.end.fault} (on {e.host})" if e.host else e.end.fault
        return _fault(e, why) if e.end.code else e.decision(Action.SUCCEED, "finished")
    match e.cause:
        case Cause.FINISHED if e.end is None and e.began is None:
            # Slurm reports COMPLETED too where the node could not start the script.
            return _fault(e, f"its script never started, although the scheduler reports success ({e.words})")
        case Cause.FINISHED if e.end is None:
            return e.decision(Action.SUCCEED, "finished, by the scheduler's record")
        case Cause.CANCELLED:
            return e.decision(Action.FAIL, f"cancelled by its owner or an administrator ({e.words})")
        case Cause.MEMORY:
            limit = f"{e.mem_mb} MiB per node" if e.mem_mb else "the site's default"
            return e.decision(Action.FAIL, f"out of memory ({e.words}): raise the resource `mem_mb`, now {limit}")
    return _interrupted(e)


def _interrupted(e: Ending) -> Decision:
    """An unrequested end without success."""
    at_walltime = e.status is None and (e.end is None or bool(e.signal)) and _reached_walltime(e)
    if e.cause is None and e.signal == "TERM" and e.unrecorded and e.runtime_min is not None and not at_walltime:
        # A user's `qdel` is not undone.
        why = "ended by signal TERM before its walltime, and the scheduler has no record of it: deleted by somebody, or"
        saved = "; it has saved, and the same command resumes it" if e.own_state == "checkpointed" else ""
        return e.decision(Action.FAIL, f"{why} preempted{saved}")
    if e.own_state == "checkpointed":
        why = e.run.cause or "stopped at a checkpoint"
        return _continue(e, f"preempted ({e.words}): {why}" if e.cause is Cause.PREEMPTED else why)
    fault = ""
    if e.cause is Cause.NODE and e.status is not None:
        where = f" {', '.join(e.status.nodes)}" if e.status.nodes else ""
        fault = f"the node{where} or its software failed ({e.words})"
    elif e.end is None and e.cause is None and not at_walltime:
        where = f" on {e.host}" if e.host else ""
        fault = f"lost: it began{where}, left no exit status, and the scheduler no longer knows it"
    if fault:
        return _fault(e, fault)
    if e.cause is Cause.WALLTIME or at_walltime:
        return _walltime(e, e.words or "by its start and its end; the scheduler says nothing of it")
    if e.cause is Cause.PREEMPTED:
        why = f"preempted ({e.words})"
        return _continue(e, why) if e.own_state == "running" else _fruitless(e, why)
    return e.decision(Action.FAIL, _how(e))


def _reached_walltime(e: Ending) -> bool:
    """Whether a job about which the scheduler reports nothing ran as long as it might."""
    if e.ran_s is None or e.runtime_min is None:
        return False
    limit_s = 60.0 * e.runtime_min
    return e.ran_s >= limit_s - min(WALLTIME_MARGIN_S, WALLTIME_MARGIN * limit_s)


def _failed_by_itself(e: Ending) -> bool:
    """Whether a job to be deleted has failed by its own command."""
    return e.end is not None and not e.signal and e.end.code <= 128 and e.cause is not Cause.CANCELLED


def _continue(e: Ending, why: str) -> Decision:
    """From a checkpoint, if there is progress; one attempt without is forgiven."""
    done = [attempt.progress for attempt in e.attempts[:-1] if attempt.progress is not None]
    if e.progress is not None and (not done or e.progress > max(done)):
        return e.decision(Action.CONTINUE, f"{why} (progress {e.progress:g})")
    at = "unknown" if e.progress is None else f"{e.progress:g}"
    return _fruitless(e, f"{why} (progress {at})")


def _fruitless(e: Ending, why: str) -> Decision:
    """An attempt without progress: the next may have some, but not for ever."""
    best = 0.0
    fruitless = 1
    for attempt in e.attempts[:-1]:
        if attempt.progress is not None and attempt.progress > best:
            best, fruitless = attempt.progress, 1
        elif attempt.cause and not attempt.node_fault:
            fruitless += 1
    if fruitless >= FRUITLESS_ATTEMPTS:
        return e.decision(Action.FAIL, f"{FRUITLESS_ATTEMPTS} attempts in a row made no progress; the last: {why}")
    return e.decision(Action.CONTINUE, f"{why}, without progress")


def _walltime(e: Ending, words: str) -> Decision:
    """Killed at the limit before it could save: only a run that has a checkpoint is worth another attempt."""
    limit = f"the walltime of {e.runtime_min} min" if e.runtime_min else "the walltime"
    if e.own_state == "running":
        return _continue(e, f"{limit} was reached ({words}): {e.run.cause or 'a checkpoint is there'}")
    if e.run.state in ("checkpointed", "running"):
        return _fruitless(e, f"{limit} was reached before a checkpoint ({words})")
    why = f"{limit} was reached ({words}), and it leaves no checkpoint: raise the resource `runtime`"
    return e.decision(Action.FAIL, why)


def _fault(e: Ending, why: str) -> Decision:
    """No fault of the run: tried once more; the job's own host, where known, is left out then."""
    if sum(attempt.node_fault for attempt in e.attempts[:-1]) >= NODE_RETRIES:
        return e.decision(Action.FAIL, f"{why}, again", node_fault=True)
    return e.decision(Action.CONTINUE, why, node_fault=True)


def _how(e: Ending) -> str:
    """Why a command failed: its own words or else the evidence, and no guess."""
    if e.own_state == "failed":
        return e.run.cause or "the run says that it failed"
    detail = f" ({e.words})" if e.cause is not None else ""
    if e.end is None:
        if e.cause is Cause.SIGNAL:
            number = e.status.signal if e.status is not None and e.status.signal else "unknown"
            return f"killed by signal {number}, cause unknown{detail}"
        return f"its command failed{detail}" if e.cause is Cause.COMMAND else f"ended, cause unknown{detail}"
    if e.signal:
        return f"ended after signal {e.signal}, cause unknown{detail}"
    if e.end.code > 128:
        return f"killed by signal {e.end.code - 128}, cause unknown{detail}"
    # Of a job that left its own record, the scheduler's exit status is that of the Snakemake in it, which is always 1.
    return "its command failed" if e.cause is Cause.COMMAND else f"its command failed{detail}"
