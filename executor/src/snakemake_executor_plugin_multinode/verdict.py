"""The verdict on a job's end, and the action on it. Pure: no files, no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from snakemake_executor_plugin_multinode.job import Asked
from snakemake_executor_plugin_multinode.records import Attempt
from snakemake_executor_plugin_multinode.runstate import RunState
from snakemake_executor_plugin_multinode.schedulers import Cause, State, Status
from snakemake_executor_plugin_multinode.status_files import End

FRUITLESS_ATTEMPTS = 2
"""So many attempts in a row without progress are a failure."""
NODE_RETRIES = 1
CLOCK_SKEW_S = 1.0
"""Allowed between the clocks of a node and of the scheduler; times of either are whole seconds."""
WALLTIME_MARGIN_S, WALLTIME_MARGIN = 60.0, 0.1
"""A job that ran to within so many seconds of its walltime, or such a share of a short one, was over its walltime: its last
heartbeat is up to half a minute old."""


class Outcome(Enum):
    """The consequence of an end for the job."""

    SUCCESS = "success"
    CONTINUE = "continue"
    """The job continues in another attempt, from its checkpoint or on another node."""
    FAILURE = "failure"


@dataclass(frozen=True)
class Verdict:
    """An outcome and its reason, in a sentence."""

    outcome: Outcome
    cause: str
    node_fault: bool = False


def verdict(
    end: End | None,
    status: Status | None,
    run: RunState | None,
    attempts: Sequence[Attempt],
    asked: Asked,
    host: str = "",
    began_s: float | None = None,
    forgotten: bool = False,
    ran_s: float | None = None,
    unrecorded: bool = False,
) -> Verdict:
    """Judge the last of `attempts`.

    `end` is the job script's own word, None if it left none; `status` the scheduler's, None if it has none to give;
    `host` is the node it ran on, where that is known; `began_s` is when the job script began, in Unix seconds;
    `forgotten` says that the scheduler, which would still know a job that ended so short a time ago, does not know this
    one; `ran_s` is the time from its start to its end, or to its last heartbeat; `unrecorded` says that the scheduler
    has answered, and keeps no record of jobs that are over.
    """
    if end is not None and (end.code == 0 or end.fault):
        return _by_its_own_word(end, attempts, host)
    cause = status.cause if status is not None and status.state is State.ENDED else None
    words = status.words if status is not None else ""
    if status is None and (end is None or end.signal) and _reached_walltime(ran_s, asked):
        cause, words = Cause.WALLTIME, "by its start and its end; the scheduler says nothing of it"
    match cause:
        case Cause.FINISHED if end is None:
            return _finished(attempts, words, began_s)
        case Cause.CANCELLED:
            return _cancelled(status, words, attempts, began_s)
        case Cause.MEMORY:
            return Verdict(Outcome.FAILURE, _memory(asked, words))
        case None if end is not None and end.signal == "TERM" and unrecorded and asked.runtime_min is not None:
            return Verdict(Outcome.FAILURE, _deleted(run))
    if forgotten and end is not None and end.signal == "TERM" and not _checkpointed(run):
        status, cause = None, Cause.NODE
    return _interrupted(end, status, cause, words, run, attempts, asked, host)


def _by_its_own_word(end: End, attempts: Sequence[Attempt], host: str) -> Verdict:
    if end.code == 0:
        return Verdict(Outcome.SUCCESS, "finished")
    return _fault(attempts, f"{end.fault} (on {host})" if host else end.fault)


def _checkpointed(run: RunState | None) -> bool:
    return run is not None and run.fresh and run.state == "checkpointed"


def _reached_walltime(ran_s: float | None, asked: Asked) -> bool:
    """Whether a job of which the scheduler says nothing ran as long as it might."""
    if ran_s is None or asked.runtime_min is None:
        return False
    limit_s = 60.0 * asked.runtime_min
    return ran_s >= limit_s - min(WALLTIME_MARGIN_S, WALLTIME_MARGIN * limit_s)


def _deleted(run: RunState | None) -> str:
    """Ended by TERM long before its walltime, without a recorded reason: a user's `qdel` is not undone."""
    why = "ended by signal TERM before its walltime, and the scheduler has no record of it: deleted by somebody, or preempted"
    return f"{why}; it has saved, and the same command resumes it" if _checkpointed(run) else why


def failed_by_itself(end: End | None, status: Status | None) -> bool:
    """Whether a job to be deleted has failed by its own command."""
    if end is None or end.signal or end.code > 128:
        return False
    return status is None or status.state is not State.ENDED or status.cause is not Cause.CANCELLED


def _finished(attempts: Sequence[Attempt], words: str, began_s: float | None) -> Verdict:
    """A job that left no word of its end. Slurm calls it COMPLETED too if the node could not start its script."""
    if began_s is None:
        return _fault(attempts, f"its script never started, although the scheduler reports success ({words})")
    return Verdict(Outcome.SUCCESS, "finished, by the scheduler's record")


def _cancelled(status: Status | None, words: str, attempts: Sequence[Attempt], began_s: float | None) -> Verdict:
    """By a person, unless the job had begun before the start that its scheduler knows of, or never on its nodes.

    A Slurm that was killed has its state as it was up to some seconds before. Started anew, it launches a job that it
    believes to wait; where the node says that a job of that number runs or ran there, it deletes the job (22.05,
    `job_requeue` being off).
    """
    known_s = status.started_s if status is not None else None
    if began_s is None and status is not None and status.nodes:
        return _fault(
            attempts, f"deleted after it had been given {', '.join(status.nodes)}, before its script began ({words})"
        )
    if known_s is not None and began_s is not None and began_s + CLOCK_SKEW_S < known_s:
        why = f"the scheduler had forgotten that the job runs, started it again, and deleted it ({words})"
        return _fault(attempts, why)
    return Verdict(Outcome.FAILURE, f"cancelled by its owner or an administrator ({words})")


def _interrupted(
    end: End | None,
    status: Status | None,
    cause: Cause | None,
    words: str,
    run: RunState | None,
    attempts: Sequence[Attempt],
    asked: Asked,
    host: str,
) -> Verdict:
    """An unrequested end without success."""
    if run is not None and _checkpointed(run):
        why = run.cause or "stopped at a checkpoint"
        return _continue(run, attempts, f"preempted ({words}): {why}" if cause is Cause.PREEMPTED else why)
    if cause is Cause.WALLTIME:
        return _walltime(run, attempts, asked, words)
    if cause is Cause.PREEMPTED:
        return _fruitless(attempts, f"preempted ({words})")
    if cause is Cause.NODE or (end is None and cause is None):
        return _node(end, status, attempts, words, host)
    if run is not None and run.fresh and run.state == "failed":
        return Verdict(Outcome.FAILURE, run.cause or "the run says that it failed")
    return Verdict(Outcome.FAILURE, _how(end, status, cause))


def _continue(run: RunState, attempts: Sequence[Attempt], why: str) -> Verdict:
    """From a checkpoint, if there is progress; one attempt without is forgiven."""
    done = [attempt.progress for attempt in attempts[:-1] if attempt.progress is not None]
    if run.progress is not None and (not done or run.progress > max(done)):
        return Verdict(Outcome.CONTINUE, f"{why} (progress {run.progress:g})")
    at = "unknown" if run.progress is None else f"{run.progress:g}"
    return _fruitless(attempts, f"{why} (progress {at})")


def _fruitless(attempts: Sequence[Attempt], why: str) -> Verdict:
    """An attempt without progress: the next may have some, but not for ever."""
    best = 0.0
    fruitless = 1
    for attempt in attempts[:-1]:
        if attempt.progress is not None and attempt.progress > best:
            best, fruitless = attempt.progress, 1
        elif attempt.cause and not attempt.node_fault:
            fruitless += 1
    if fruitless >= FRUITLESS_ATTEMPTS:
        return Verdict(Outcome.FAILURE, f"{FRUITLESS_ATTEMPTS} attempts in a row made no progress; the last: {why}")
    return Verdict(Outcome.CONTINUE, f"{why}, without progress")


def _walltime(run: RunState | None, attempts: Sequence[Attempt], asked: Asked, words: str) -> Verdict:
    """Killed at the limit before it could save: only a run that has a checkpoint is worth another attempt."""
    limit = f" of {asked.runtime_min} min" if asked.runtime_min else ""
    if run is not None and run.fresh and run.state == "running":
        return _continue(
            run, attempts, f"the walltime{limit} was reached ({words}): {run.cause or 'a checkpoint is there'}"
        )
    if run is not None and run.state in ("checkpointed", "running"):
        return _fruitless(attempts, f"the walltime{limit} was reached before a checkpoint ({words})")
    return Verdict(
        Outcome.FAILURE,
        f"the walltime{limit} was reached ({words}), and it leaves no checkpoint: raise the resource `runtime`",
    )


def _memory(asked: Asked, words: str) -> str:
    limit = f"{asked.mem_mb} MiB per node" if asked.mem_mb else "the site's default"
    return f"out of memory ({words}): raise the resource `mem_mb`, now {limit}"


def _node(end: End | None, status: Status | None, attempts: Sequence[Attempt], words: str, host: str) -> Verdict:
    """Tried elsewhere once: the job's own host, where known, is left out next time."""
    if end is not None and status is None:
        why = "ended by signal TERM, and the scheduler does not know that it ran: it forgot the job"
    elif status is None:
        where = f" on {host}" if host else ""
        why = f"lost: it began{where}, left no exit status, and the scheduler no longer knows it"
    else:
        where = f" {', '.join(status.nodes)}" if status.nodes else ""
        why = f"the node{where} or its software failed ({words})"
    return _fault(attempts, why)


def _fault(attempts: Sequence[Attempt], why: str) -> Verdict:
    """No fault of the run: tried once more."""
    if sum(attempt.node_fault for attempt in attempts[:-1]) >= NODE_RETRIES:
        return Verdict(Outcome.FAILURE, f"{why}, again", node_fault=True)
    return Verdict(Outcome.CONTINUE, why, node_fault=True)


def _how(end: End | None, status: Status | None, cause: Cause | None) -> str:
    """A failure without a recorded reason: the evidence, and no guess."""
    said = f" ({status.words})" if status is not None and cause is not None else ""
    if cause is Cause.SIGNAL and end is None:
        number = status.signal if status is not None and status.signal else "unknown"
        return f"killed by signal {number}, cause unknown{said}"
    if end is not None and end.signal:
        return f"ended after signal {end.signal}, cause unknown{said}"
    if end is not None and end.code > 128:
        return f"killed by signal {end.code - 128}, cause unknown{said}"
    if end is None and cause is not Cause.COMMAND:
        return f"ended, cause unknown{said}"
    # Of a job that left its own word, the scheduler's exit status is that of the Snakemake in it, which is always 1.
    return "its command failed" if end is not None and cause is Cause.COMMAND else f"its command failed{said}"
