"""What a job's end means, and what to do about it. Pure: no files, no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from snakemake_executor_plugin_scalestudy.marks import End
from snakemake_executor_plugin_scalestudy.records import Link
from snakemake_executor_plugin_scalestudy.schedulers import Cause, State, Status

FRUITLESS_LINKS = 2
"""So many links in a row without progress are a failure."""
NODE_RETRIES = 1
CLOCK_SKEW_S = 1.0
"""Between a node and the scheduler, as `scalestudy doctor` allows; times of either are whole seconds."""


class Action(Enum):
    """What follows from an end."""

    SUCCEED = "succeed"
    GO_ON = "go on"
    """Submit the next link: the run goes on from its checkpoint, or is tried on another node."""
    FAIL = "fail"


@dataclass(frozen=True)
class Left:
    """What a run left beside its first output: `running` (with what it has saved so far), `checkpointed` (it stopped there
    on purpose), `failed` or `finished`."""

    state: str
    progress: float | None
    cause: str
    fresh: bool
    """Written by the link that has just ended, not by one before it."""


@dataclass(frozen=True)
class Verdict:
    """An action and its reason, in a sentence."""

    action: Action
    cause: str
    node_fault: bool = False


@dataclass(frozen=True)
class Asked:
    """What the job had asked for; for messages that say which number to raise."""

    mem_mb: int | None
    runtime_min: int | None


def verdict(
    end: End | None,
    status: Status | None,
    left: Left | None,
    links: Sequence[Link],
    asked: Asked,
    began_s: float | None = None,
    forgotten: bool = False,
) -> Verdict:
    """Judge the last of `links`.

    `end` is the job script's own word, None if it left none; `status` the scheduler's, None if it has none to give;
    `began_s` is when the job script began, in Unix seconds; `forgotten` says that the scheduler, which would still know
    a job that ended so short a time ago, does not know this one.
    """
    cause = status.cause if status is not None and status.state is State.ENDED else None
    words = status.words if status is not None else ""
    match cause:
        case _ if end is not None and end.code == 0:
            return Verdict(Action.SUCCEED, "finished")
        case Cause.FINISHED if end is None:
            return _finished(links, words, began_s)
        case Cause.CANCELLED:
            return _cancelled(status, words, links, began_s)
        case Cause.MEMORY:
            return Verdict(Action.FAIL, _memory(asked, words))
    if left is not None and left.fresh and left.state == "checkpointed":
        why = left.cause or "stopped at a checkpoint"
        return _go_on(left, links, f"preempted ({words}): {why}" if cause is Cause.PREEMPTED else why)
    if forgotten and end is not None and end.signal == "TERM":
        status, cause = None, Cause.NODE
    return _without_checkpoint(end, status, cause, left, links, asked)


def failed_by_itself(end: End | None, status: Status | None) -> bool:
    """Whether a job whose deletion was asked for has failed by its own command."""
    if end is None or end.signal or end.code > 128:
        return False
    return status is None or status.state is not State.ENDED or status.cause is not Cause.CANCELLED


def _finished(links: Sequence[Link], words: str, began_s: float | None) -> Verdict:
    """A job that left no word of its end. Slurm calls it COMPLETED too if the node could not start its script."""
    if began_s is None:
        return _fault(links, f"its script did not begin, although the scheduler says that it has ended well ({words})")
    return Verdict(Action.SUCCEED, "finished, by the scheduler's record")


def _cancelled(status: Status | None, words: str, links: Sequence[Link], began_s: float | None) -> Verdict:
    """By a person, unless the job had begun before the start that its scheduler knows of, or never on its nodes.

    A Slurm that was killed has its state as it was up to some seconds before. Started anew, it launches a job that it
    believes to wait; where the node says that a job of that number runs or ran there, it deletes the job (22.05,
    `job_requeue` being off).
    """
    known_s = status.started_s if status is not None else None
    if began_s is None and status is not None and status.nodes:
        return _fault(
            links, f"deleted after it had been given {', '.join(status.nodes)}, before its script began ({words})"
        )
    if known_s is not None and began_s is not None and began_s + CLOCK_SKEW_S < known_s:
        why = f"the scheduler had forgotten that the job runs, started it again, and deleted it ({words})"
        return _fault(links, why)
    return Verdict(Action.FAIL, f"cancelled by its owner or an administrator ({words})")


def _without_checkpoint(
    end: End | None, status: Status | None, cause: Cause | None, left: Left | None, links: Sequence[Link], asked: Asked
) -> Verdict:
    """An end that was not announced by a new checkpoint."""
    words = status.words if status is not None else ""
    if cause is Cause.WALLTIME:
        return _walltime(left, links, asked, words)
    if cause is Cause.PREEMPTED:
        return _fruitless(links, f"preempted ({words})")
    if cause is Cause.NODE or (end is None and cause is None):
        return _node(end, status, links, words)
    if left is not None and left.fresh and left.state == "failed":
        return Verdict(Action.FAIL, left.cause or "the run says that it failed")
    return Verdict(Action.FAIL, _how(end, status, cause))


def _go_on(left: Left, links: Sequence[Link], why: str) -> Verdict:
    """From a checkpoint, if there is progress; one link without is forgiven."""
    done = [link.progress for link in links[:-1] if link.progress is not None]
    if left.progress is not None and (not done or left.progress > max(done)):
        return Verdict(Action.GO_ON, f"{why} (progress {left.progress:g})")
    at = "unknown" if left.progress is None else f"{left.progress:g}"
    return _fruitless(links, f"{why} (progress {at})")


def _fruitless(links: Sequence[Link], why: str) -> Verdict:
    """A link without progress: the next may have some, but not for ever."""
    best = 0.0
    fruitless = 1
    for link in links[:-1]:
        if link.progress is not None and link.progress > best:
            best, fruitless = link.progress, 1
        elif link.cause and not link.node_fault:
            fruitless += 1
    if fruitless >= FRUITLESS_LINKS:
        return Verdict(Action.FAIL, f"{FRUITLESS_LINKS} links in a row made no progress; the last: {why}")
    return Verdict(Action.GO_ON, f"{why}, without progress")


def _walltime(left: Left | None, links: Sequence[Link], asked: Asked, words: str) -> Verdict:
    """Killed at the limit before it could save: only a run that has a checkpoint is worth another link."""
    limit = f" of {asked.runtime_min} min" if asked.runtime_min else ""
    if left is not None and left.fresh and left.state == "running":
        return _go_on(left, links, f"the walltime{limit} was over ({words}): {left.cause or 'a checkpoint is there'}")
    if left is not None and left.state in ("checkpointed", "running"):
        return _fruitless(links, f"the walltime{limit} was over before a checkpoint ({words})")
    return Verdict(
        Action.FAIL,
        f"the walltime{limit} was over ({words}), and it leaves no checkpoint: raise the resource `runtime`",
    )


def _memory(asked: Asked, words: str) -> str:
    limit = f"{asked.mem_mb} MiB per node" if asked.mem_mb else "the site's default"
    return f"out of memory ({words}): raise the resource `mem_mb`, now {limit}"


def _node(end: End | None, status: Status | None, links: Sequence[Link], words: str) -> Verdict:
    """Tried elsewhere once: the job's own host, where known, is left out next time."""
    host = links[-1].host
    if end is not None and status is None:
        why = "ended by signal TERM, and the scheduler does not know that it ran: it forgot the job"
    elif status is None:
        where = f" on {host}" if host else ""
        why = f"lost: it began{where}, left no word of its end, and the scheduler knows it no more"
    else:
        where = f" {', '.join(status.nodes)}" if status.nodes else ""
        why = f"the node{where} or its software failed ({words})"
    return _fault(links, why)


def _fault(links: Sequence[Link], why: str) -> Verdict:
    """No fault of the run: tried once more."""
    if sum(link.node_fault for link in links[:-1]) >= NODE_RETRIES:
        return Verdict(Action.FAIL, f"{why}, again", node_fault=True)
    return Verdict(Action.GO_ON, why, node_fault=True)


def _how(end: End | None, status: Status | None, cause: Cause | None) -> str:
    """A failure for which nobody gives a reason: what is known, and no guess."""
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
    return f"its command failed{said}"
