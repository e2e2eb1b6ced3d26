"""What is known of jobs: what their scripts left in the status files, and what the scheduler answers.

One query at a time asks about all jobs, in a thread of its own: a scheduler that hangs blocks nothing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from snakemake_executor_plugin_scalestudy.clock import Clock
from snakemake_executor_plugin_scalestudy.job import MonitoredJob
from snakemake_executor_plugin_scalestudy.runstate import RunState, read_run_state
from snakemake_executor_plugin_scalestudy.schedulers import Job, NoAnswer, Scheduler, Status
from snakemake_executor_plugin_scalestudy.status_files import Began, End, StatusFiles

SOON_S = 2.0
"""Interval of queries while the cause of an end is missing, seconds."""

LISTING_S = 0.5
"""Least interval between two listings of the status files, seconds, however fast submissions follow one another."""

Background = Callable[[Callable[[], None]], None]


def in_thread(work: Callable[[], None]) -> None:
    """Run something in the background; the monitor does not wait for it."""
    threading.Thread(target=work, daemon=True).start()


class Listing:
    """The names of all status files, listed at most twice a second."""

    def __init__(self, files: StatusFiles, clock: Clock) -> None:
        self.files, self.clock = files, clock
        self._names: set[str] | None = None
        self._listed_s = 0.0

    def names(self) -> set[str]:
        """All names, at most LISTING_S old; OSError where the folder cannot be read."""
        if self._names is None or self.clock.now_s() - self._listed_s >= LISTING_S:
            self._names, self._listed_s = self.files.names(), self.clock.now_s()
        return self._names


@dataclass(frozen=True)
class Answer:
    """An answer of the scheduler, or that there was none, and when it was asked for."""

    asked_s: float
    statuses: dict[str, Status] | NoAnswer


class Observer:
    """Reads status files and queries the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        files: StatusFiles,
        driver_began_ns: int,
        poll_s: float,
        clock: Clock,
        background: Background,
    ) -> None:
        self.scheduler, self.files, self.driver_began_ns, self.poll_s = scheduler, files, driver_began_ns, poll_s
        self.clock, self.background = clock, background
        self.wake = threading.Event()
        self._asking = False
        self._next_question_s = 0.0
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def evidence(self, job: MonitoredJob, names: set[str]) -> AttemptEvidence:
        """What there is to know about the job's last attempt; `names` are the status files that there are."""
        return AttemptEvidence(self, job, names)

    def ask_soon(self) -> None:
        """A job needs an answer: do not wait for the next regular query."""
        self._next_question_s = min(self._next_question_s, self.clock.now_s() + SOON_S)

    def ask_now(self) -> None:
        """An end was found: the next query is due now."""
        self._next_question_s = 0.0

    def ask(self, jobs: Sequence[MonitoredJob]) -> None:
        """Ask about these jobs, if it is time and no query is in progress."""
        if self._asking or not jobs or self.clock.now_s() < self._next_question_s:
            return
        self._asking = True
        asked, asked_s = [Job(job.attempt.name, job.attempt.id) for job in jobs], self.clock.now_s()
        self.background(lambda: self._question(asked, asked_s))

    def answers(self) -> list[Answer]:
        """What has been answered since this was called last."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
            self._asking = False
            self._next_question_s = self.clock.now_s() + self.poll_s
        return found

    def _question(self, jobs: list[Job], asked_s: float) -> None:
        try:
            answer = Answer(asked_s, self.scheduler.statuses(jobs))
        except NoAnswer as error:
            answer = Answer(asked_s, error)
        except Exception as error:  # an answer that cannot be parsed must not end a run
            answer = Answer(asked_s, NoAnswer(f"{type(error).__name__}: {error}"))
        self._answers.put(answer)
        self.wake.set()


class AttemptEvidence:
    """`decide.Evidence` from the disk and the scheduler, each part read when it is asked for, and once."""

    def __init__(self, observer: Observer, job: MonitoredJob, names: set[str]) -> None:
        self._observer, self._job, self._names = observer, job, names
        self._files = observer.files

    @cached_property
    def end(self) -> End | None:
        """How its script ended, by its own word."""
        name = self._job.attempt.name
        return self._files.end(name) if f"{name}.ended" in self._names else None

    @cached_property
    def began(self) -> Began | None:
        """When and where its script began."""
        name = self._job.attempt.name
        return self._files.began(name) if f"{name}.began" in self._names else None

    @cached_property
    def silent_s(self) -> float:
        """How long ago its script gave its last sign of life."""
        return self._files.silent_s(self._job.attempt.name)

    @cached_property
    def run_state(self) -> RunState | None:
        """What its run says of itself."""
        return read_run_state(self._job.work.state_file, self._job.attempt.state_before)

    @cached_property
    def ended_before_driver(self) -> bool:
        """Whether the end was written before this driver began."""
        return self._files.ended_mtime_ns(self._job.attempt.name) < self._observer.driver_began_ns

    @cached_property
    def remembers_deleted(self) -> bool:
        """Whether the scheduler would still know a job that was deleted."""
        return self._observer.scheduler.remembers_deleted
