"""Evidence on jobs: the status files of their scripts, and the scheduler's answers.

One query at a time asks about all jobs, in a thread of its own: a scheduler that hangs blocks nothing.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from snakemake_executor_plugin_multinode.clock import Clock
from snakemake_executor_plugin_multinode.job import MonitoredJob
from snakemake_executor_plugin_multinode.runstate import RunState, read_run_state
from snakemake_executor_plugin_multinode.schedulers import JobRef, NoAnswer, Scheduler, Status
from snakemake_executor_plugin_multinode.status_files import Began, End, StatusFiles

SOON_S = 2.0
"""Interval of queries while the cause of an end is missing, seconds."""

LISTING_S = 0.5
"""Least interval between two looks at the folder of the status files, seconds, however fast submissions follow one another."""
LISTED_PER_S = 1000.0
"""Names that are listed per second, at most: a thousand jobs leave three thousand."""

Background = Callable[[Callable[[], None]], None]


def in_thread(work: Callable[[], None]) -> None:
    """Run something in the background; the monitor does not wait for it."""
    threading.Thread(target=work, daemon=True).start()


class Listing:
    """The names of all status files: listed when the folder has changed, else with each query of the scheduler.

    A folder's time stamp may be as coarse as a second, and a network file system may show an old one: after a change it is
    listed once more, and after `poll_s` in any case.
    """

    def __init__(self, files: StatusFiles, poll_s: float, clock: Clock) -> None:
        self.files, self.poll_s, self.clock = files, poll_s, clock
        self.listings = 0
        """How often the folder was listed."""
        self._names: set[str] = set()
        self._looked_s = self._listed_s = -math.inf
        self._changed_ns = 0
        self._again = True

    def names(self) -> set[str]:
        """All names; OSError where the folder cannot be read."""
        now_s = self.clock.now_s()
        if now_s - self._looked_s < max(LISTING_S, len(self._names) / LISTED_PER_S):
            return self._names
        changed_ns = self.files.changed_ns()
        changed = changed_ns != self._changed_ns
        if changed or self._again or now_s - self._listed_s >= self.poll_s:
            self._names, self._listed_s = self.files.names(), now_s
            self.listings += 1
            self._changed_ns, self._again = changed_ns, changed
        self._looked_s = now_s
        return self._names


@dataclass(frozen=True)
class StatusAnswer:
    """An answer of the scheduler, or that there was none, and when it was asked for."""

    asked_s: float
    asked: frozenset[str]
    """Names of the jobs that were asked about."""
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
        self._answers: queue.SimpleQueue[StatusAnswer] = queue.SimpleQueue()

    def evidence(self, job: MonitoredJob, names: set[str]) -> AttemptEvidence:
        """Collect the evidence on the job's last attempt; `names` are the present status files."""
        return AttemptEvidence(self, job, names)

    def ask_soon(self) -> None:
        """A job needs an answer: do not wait for the next regular query."""
        self._next_question_s = min(self._next_question_s, self.clock.now_s() + SOON_S)

    def ask_now(self) -> None:
        """An end was found: the next query is due now."""
        self._next_question_s = 0.0

    def ask(self, jobs: Sequence[JobRef]) -> None:
        """Ask about these jobs, if it is time and no query is in progress."""
        if self._asking or not jobs or self.clock.now_s() < self._next_question_s:
            return
        self._asking = True
        asked_s = self.clock.now_s()
        self.background(lambda: self._question(jobs, asked_s))

    def answers(self) -> list[StatusAnswer]:
        """Return the answers since the last call."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
            self._asking = False
            self._next_question_s = self.clock.now_s() + self.poll_s
        return found

    def _question(self, jobs: Sequence[JobRef], asked_s: float) -> None:
        statuses: dict[str, Status] | NoAnswer
        try:
            statuses = self.scheduler.statuses(jobs)
        except NoAnswer as error:
            statuses = error
        except Exception as error:  # an answer that cannot be parsed must not end a run
            statuses = NoAnswer(f"{type(error).__name__}: {error}")
        self._answers.put(StatusAnswer(asked_s, frozenset(job.name for job in jobs), statuses))
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
        """How long ago its script sent its last heartbeat."""
        return self._files.silent_s(self._job.attempt.name)

    @cached_property
    def ran_s(self) -> float | None:
        """Seconds from the start of its script to its end or its last heartbeat."""
        if self.end is not None:
            return float(self.end.ended_s - self.end.began_s)
        beat_s = self._files.last_beat_s(self._job.attempt.name) if self.began is not None else None
        return None if beat_s is None or self.began is None else max(0.0, beat_s - self.began.began_s)

    @cached_property
    def run_state(self) -> RunState | None:
        """Read the run's own state."""
        return read_run_state(self._job.work.state_file, self._job.attempt.state_before)

    @cached_property
    def ended_before_driver(self) -> bool:
        """Whether the end was written before this driver began."""
        return self._files.ended_mtime_ns(self._job.attempt.name) < self._observer.driver_began_ns

    @cached_property
    def keeps_history(self) -> bool:
        """Whether the scheduler would still know a job that was deleted."""
        return self._observer.scheduler.keeps_history
