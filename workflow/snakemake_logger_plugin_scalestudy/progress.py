"""Jobs of one workflow call and their states.

Pure: times are handed in, in seconds since 1970.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from scalestudy.errors import duration

MAX_NAMED = 5
"""Running jobs that are named."""

State = Literal["waiting", "running", "done", "failed"]


@dataclass
class Task:
    """One job of the workflow, identified by its first output."""

    output: str
    rule: str
    name: str
    state: State = "waiting"
    began: float = 0.0
    """Start of the job itself, after any time in a queue; 0 before it."""
    reason: str = ""
    """Why a submitted job waits: in the queue, or for other work on this host."""
    outputs: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    """By file, when a log of an earlier attempt was written last."""


@dataclass
class Progress:
    """All jobs of one call of the workflow."""

    tasks: dict[str, Task] = field(default_factory=dict)
    command: str = ""
    """Resumes it."""

    def of(self, *states: State) -> list[Task]:
        """Jobs in one of these states, the earliest first."""
        return sorted((task for task in self.tasks.values() if task.state in states), key=lambda task: task.began)

    def begin(self, task: Task, now: float, reason: str = "") -> None:
        """Mark a job as running or, with a `reason`, as submitted and waiting."""
        task.state, task.began, task.reason = ("waiting", 0.0, reason) if reason else ("running", now, "")

    @property
    def runs(self) -> Counter[State]:
        """Number of runs in each state; of all jobs where there are no runs."""
        runs = [task for task in self.tasks.values() if task.rule == "train"]
        return Counter(task.state for task in runs or self.tasks.values())


def heading(progress: Progress) -> str:
    """`40 of 95 runs done, 2 failed`."""
    states = progress.runs
    kind = "runs" if any(task.rule == "train" for task in progress.tasks.values()) else "jobs"
    failed = f", {states['failed']} failed" if states["failed"] else ""
    return f"{states['done']} of {states.total()} {kind} done{failed}"


def current(progress: Progress, now: float) -> Iterator[str]:
    """What runs, and what was submitted and waits, each with its time or its reason."""
    submitted = [*progress.of("running"), *(task for task in progress.of("waiting") if task.reason)]
    for task in submitted[:MAX_NAMED]:
        yield f"{task.name}: {f'waits ({task.reason})' if task.reason else duration(now - task.began)}"
    if len(submitted) > MAX_NAMED:
        yield f"and {len(submitted) - MAX_NAMED} more"


def stopped(progress: Progress) -> str:
    """What is left, and the command that resumes."""
    counts = {"failed": len(progress.of("failed")), "not done": len(progress.of("waiting", "running"))}
    parts = " and ".join(f"{count} {state}" for state, count in counts.items() if count)
    jobs = "1 job" if len(progress.tasks) == 1 else f"{len(progress.tasks)} jobs"
    return f"Of {jobs}, {parts}. To resume: {progress.command}"
