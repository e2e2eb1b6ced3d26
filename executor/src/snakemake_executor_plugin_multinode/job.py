"""A monitored job: its identity, its submissions, and its state, which is one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_multinode.records import Attempt, Record
from snakemake_executor_plugin_multinode.schedulers import Request, State, Status
from snakemake_executor_plugin_multinode.status_files import End


class Phase(Enum):
    """The phase of a job."""

    NEW = "its record has not been read"
    TO_SUBMIT = "to be submitted"
    SUBMITTED = "submitted, without an answer about it since"
    ALIVE = "queued or running, by its scheduler"
    MISSING = "unknown to its scheduler"
    ENDING = "ended; why, or that it is requeued, may come later"


@dataclass(frozen=True)
class JobState:
    """A phase and its limits in time. Times are those of the monitor's clock, seconds."""

    phase: Phase
    since_s: float
    status: Status | None = None
    """The scheduler's last answer, where the phase follows from that; None where it did not know the job."""
    answers: int = 0
    """MISSING and ENDING: how many answers in a row say so, or do not have the job."""
    asked_s: float = 0.0
    """When the last answer was requested: an answer from before an end says nothing about it."""
    end: End | None = None
    """ENDING: the job script's own record; None if only the scheduler reports the end."""
    forbidden: bool | None = None
    """MISSING: whether the job could be forbidden to begin; None as long as that was not tried."""
    history: bool = False
    """MISSING: whether the scheduler keeps a record of deleted jobs for a while."""

    @property
    def reported(self) -> State | None:
        """The scheduler's last word; None where it did not know the job."""
        return None if self.status is None else self.status.state


@dataclass(eq=False)
class MonitoredJob:
    """A job of this driver. `handle` is Snakemake's, for reports; `outputs` is all that it makes."""

    handle: Any
    key: str
    label: str
    rule: str
    wildcards: tuple[str, ...]
    request: Request | None
    """Its size, limits and queue, without a name; None where its resources make none."""
    write_script: Callable[[Request], None]
    """ValueError, with a sentence, where there can be no script."""
    refusal: str = ""
    """Why it has no request."""
    state_file: Path | None = None
    outputs: tuple[str, ...] = ()
    record: Record = field(init=False)
    state: JobState = JobState(Phase.NEW, 0.0)
    adopted: bool = False
    """Whether a driver before this one submitted its last attempt."""
    unsaved: bool = False
    """Whether its id is known and not yet on disk."""

    def __post_init__(self) -> None:
        self.record = Record(self.key, self.label, outputs=self.outputs)

    @property
    def submitted(self) -> bool:
        """Whether a submission of it may be alive."""
        return self.state.phase not in (Phase.NEW, Phase.TO_SUBMIT)

    @property
    def attempt(self) -> Attempt:
        """Its last submission."""
        return self.record.attempts[-1]

    @property
    def id(self) -> str:
        """The name of its last submission in messages."""
        return self.attempt.id or self.attempt.name


class Action(Enum):
    """An action on a job."""

    WAIT = "wait"
    FORBID = "prevent it from starting, if it has not started"
    REQUEUED = "let its scheduler run it a second time"
    SUCCEED = "report its success"
    FAIL = "report its failure"
    CONTINUE = "continues in a new job"
    RESUBMIT = "is submitted once more, since it never began"
    START_OVER = "is made again, whatever there was before"
    """The last three submit another attempt; their values end a sentence about the job."""


@dataclass(frozen=True)
class Decision:
    """An action, the job's state from now on, and the reason in a sentence."""

    action: Action
    state: JobState
    why: str = ""
    node_fault: bool = False
    progress: float | None = None
    host: str = ""
    delete: bool = False
    """Whether the scheduler has to delete the attempt, which it may still hold."""
