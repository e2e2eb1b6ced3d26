"""Evidence on jobs: the status files of their scripts, and the scheduler's answers.

One query at a time asks about all jobs, in a thread of its own: a scheduler that hangs blocks nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from snakemake_executor_plugin_multinode.job import MonitoredJob
from snakemake_executor_plugin_multinode.schedulers import JobRef, NoAnswer, Scheduler, Status
from snakemake_executor_plugin_multinode.status_files import Began, End, RunState, StatusFiles, read_run_state

SOON_S = 2.0
"""Interval of queries while the cause of an end is missing, seconds."""
LISTING_S = 0.5
"""Least interval between two listings of the status files, seconds."""
LISTED_PER_S = 1000.0
"""Names that are listed per second, at most: a thousand jobs leave three thousand."""


def in_thread(work: Callable[[], None]) -> None:
    """Run something in the background; the monitor does not wait for it."""
    threading.Thread(target=work, daemon=True).start()


@dataclass(frozen=True)
class StatusAnswer:
    """An answer of the scheduler, or that there was none, and when it was asked for."""

    asked_s: float
    statuses: dict[str, Status] | NoAnswer


class Observer:
    """Lists status files and queries the scheduler."""

    def __init__(self, scheduler: Scheduler, files: StatusFiles, poll_s: float, now_s: Callable[[], float]) -> None:
        self.scheduler, self.files, self.poll_s = scheduler, files, poll_s
        self.now_s, self.background = now_s, in_thread
        self.wake = threading.Event()
        self._names: set[str] = set()
        self._listed_s = -math.inf
        self._asking = False
        self._next_question_s = 0.0
        self._answer: StatusAnswer | None = None

    def names(self) -> set[str]:
        """All status files; OSError where their folder cannot be read."""
        if self.now_s() - self._listed_s >= max(LISTING_S, len(self._names) / LISTED_PER_S):
            self._names, self._listed_s = self.files.names(), self.now_s()
        return self._names

    def ask_within(self, seconds: float) -> None:
        """A job needs an answer: do not wait for the next regular query."""
        self._next_question_s = min(self._next_question_s, self.now_s() + seconds)

    def ask(self, jobs: Sequence[JobRef]) -> None:
        """Ask about these jobs, if it is time and no query is in progress."""
        if self._asking or not jobs or self.now_s() < self._next_question_s:
            return
        self._asking = True
        asked_s = self.now_s()
        self.background(lambda: self._question(jobs, asked_s))

    def answer(self) -> StatusAnswer | None:
        """Take the answer to the last query; None as long as there is none."""
        answer = self._answer
        if answer is not None:
            self._answer, self._asking = None, False
            self._next_question_s = self.now_s() + self.poll_s
        return answer

    def _question(self, jobs: Sequence[JobRef], asked_s: float) -> None:
        statuses: dict[str, Status] | NoAnswer
        try:
            statuses = self.scheduler.statuses(jobs)
        except NoAnswer as error:
            statuses = error
        except Exception as error:  # an answer that cannot be parsed must not end a run
            statuses = NoAnswer(f"{type(error).__name__}: {error}")
        self._answer = StatusAnswer(asked_s, statuses)
        self.wake.set()


class Evidence:
    """Evidence on a job's last attempt, each part read when it is asked for, and once; `names` are the status files."""

    def __init__(self, job: MonitoredJob, files: StatusFiles, names: set[str]) -> None:
        self._job, self._files, self._names = job, files, names
        self._name = job.attempt.name

    @cached_property
    def end(self) -> End | None:
        """How its script ended, by its own record."""
        return self._files.end(self._name) if f"{self._name}.ended" in self._names else None

    @cached_property
    def began(self) -> Began | None:
        """When and where its script began."""
        return self._files.began(self._name) if f"{self._name}.began" in self._names else None

    @cached_property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat of its script."""
        return self._files.silent_s(self._name)

    @cached_property
    def ran_s(self) -> float | None:
        """Seconds from the start of its script to its end or, without one, to its last heartbeat; None: not begun."""
        return self._files.ran_s(self._name, self.end)

    @cached_property
    def run_state(self) -> RunState:
        """The run's own state."""
        return read_run_state(self._job.state_file, self._job.attempt.state_before)

    @cached_property
    def ended_before_driver(self) -> bool:
        """Whether its end was written before this driver began."""
        return self._files.ended_before_driver(self._name)
