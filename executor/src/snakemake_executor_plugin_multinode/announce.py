"""What people are told about jobs: each change and each difficulty once, in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from snakemake_executor_plugin_multinode.decide import Limits
from snakemake_executor_plugin_multinode.job import MonitoredJob
from snakemake_executor_plugin_multinode.records import Attempt
from snakemake_executor_plugin_multinode.schedulers import State, Status

WAITING_S = 300.0
"""After so long in the queue with nothing running, the scheduler's reasons are said; then each time after twice as long."""
MOST_REASONS = 3
SUBMISSION, QUESTION, FILES = "submission", "question", "status files"


class Reporter(Protocol):
    """Receives what the monitor reports; the executor passes it on to Snakemake."""

    def say(self, text: str) -> None:
        """Something a person may want to know."""

    def warn(self, text: str) -> None:
        """Something a person should know."""

    def succeeded(self, job: MonitoredJob) -> None:
        """A job is done."""

    def failed(self, job: MonitoredJob, why: str) -> None:
        """A job has failed, for the reason given."""


class Announcer:
    """Puts into words what is heard of the scheduler and of its jobs, and does not repeat itself."""

    def __init__(self, tell: Reporter, limits: Limits) -> None:
        self.tell, self.limits = tell, limits
        self._without_answer: set[str] = set()
        """Of QUESTION and FILES those that failed last time."""
        self._not_submitted = ""
        """What was said last about a submission without an answer, until one succeeds."""
        self._full_was_said = False
        self._waiting_s = WAITING_S
        self._held_up: set[int] = set()
        self._errors: dict[int, str] = {}
        """By job, the error that was told last."""

    def no_answer(self, words: str, to: str) -> None:
        """The scheduler did not answer to a SUBMISSION or a QUESTION, or the FILES could not be read."""
        whose = "the status files cannot be read" if to == FILES else "no answer from the scheduler"
        if to == SUBMISSION:
            new = words != self._not_submitted and QUESTION not in self._without_answer
            self._not_submitted = words
        else:
            new = to not in self._without_answer
            self._without_answer.add(to)
        if new:
            self.tell.warn(f"{whose}, which changes nothing for the jobs: {words}")

    def answered(self, to: str) -> None:
        """What had failed has not failed this time."""
        if to == SUBMISSION:
            self._not_submitted = ""
        elif to in self._without_answer:
            self._without_answer.discard(to)
            self.tell.warn(f"the {'status files can be read' if to == FILES else 'scheduler answers'} again")

    def waiting(self, jobs: Sequence[MonitoredJob], now_s: float) -> None:
        """Nothing runs while jobs are in the queue: why, in the scheduler's words, now and then."""
        known = [(job.state.since_s, job.state.status) for job in jobs if job.submitted]
        states = [status.state for _, status in known if status is not None]
        queued = [(since_s, status) for since_s, status in known if status is not None and status.state is State.QUEUED]
        if not queued or State.RUNNING in states:
            self._waiting_s = WAITING_S
            return
        longest_s = now_s - min(since_s for since_s, _ in queued)
        if longest_s < self._waiting_s:
            return
        self._waiting_s = 2 * longest_s
        reasons = Counter(status.words for _, status in queued).most_common(MOST_REASONS)
        said = ", ".join(f"{words} ({count})" for words, count in reasons)
        jobs_are = "1 job is" if len(queued) == 1 else f"{len(queued)} jobs are"
        self.tell.say(
            f"nothing runs: {jobs_are} in the queue, for up to {longest_s / 60:.0f} min; the scheduler says: {said}"
        )

    def changed(self, job: MonitoredJob, status: Status, before: State | None, requeued: bool) -> None:
        """The scheduler reports a job in another state than `before`."""
        which = f"{job.work.label}: job {status.id}"
        if status.state in (State.HELD, State.SUSPENDED):
            self.tell.warn(f"{which} is {status.state.value} ({status.words}); it continues when it is released")
        elif status.state is State.NEVER:
            patience = f"{self.limits.blocked_s / 60:g} minutes"
            self.tell.warn(f"{which} cannot run as things are ({status.words}); if that lasts {patience} it is deleted")
        elif status.state is State.UNKNOWN:
            self.tell.warn(f"{which} is in a state that is not known here, {status.words!r}; waiting")
        elif requeued:
            self.requeued(job)
        elif before in (State.HELD, State.SUSPENDED, State.NEVER) and status.state is not State.ENDED:
            self.tell.warn(f"{which} is {status.state.value} again")

    def held_up(self, job: MonitoredJob, by: Sequence[Attempt]) -> None:
        """A group is not submitted as long as these attempts of an earlier driver may make some of its files."""
        new = by and id(job) not in self._held_up
        self._held_up = self._held_up | {id(job)} if by else self._held_up - {id(job)}
        if new:
            ids = ", ".join(attempt.id or attempt.name for attempt in by)
            self.tell.warn(f"{job.work.label}: waits for job {ids} of an earlier driver, which makes some of its files")

    def requeued(self, job: MonitoredJob) -> None:
        """The scheduler runs a job a second time."""
        self.tell.warn(f"{job.work.label}: job {job.id} was requeued; it runs again")

    def full(self, words: str, waiting: int) -> None:
        """The scheduler takes no more jobs of this user for now, and `waiting` jobs are still to be submitted."""
        if not self._full_was_said:
            self._full_was_said = True
            jobs = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
            self.tell.warn(f"the scheduler takes no more jobs for now ({words}); {jobs} until others end")

    def error(self, job: MonitoredJob, error: OSError) -> None:
        """Handling a job failed, and is tried again."""
        if self._errors.get(id(job)) != str(error):
            self.tell.warn(f"{job.work.label}: {error}; trying again")
        self._errors[id(job)] = str(error)

    def no_error(self, job: MonitoredJob) -> None:
        """Handling a job succeeded."""
        self._errors.pop(id(job), None)
