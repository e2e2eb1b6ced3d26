"""Messages about jobs: each change and each difficulty once, in a sentence."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from snakemake_executor_plugin_multinode.job import MonitoredJob
from snakemake_executor_plugin_multinode.records import Attempt
from snakemake_executor_plugin_multinode.schedulers import JobRef, LimitReached, State, Status

MAX_REASONS = 3
PAUSED = State.HELD, State.SUSPENDED
SUBMISSION, QUESTION, FILES = "submission", "question", "status files"


class Messages:
    """Puts events of the scheduler and of its jobs into words, each once.

    `tell` is the executor, which passes them on; `site` the file in which the site says how jobs are submitted.
    """

    def __init__(self, tell: Any, site: str) -> None:
        self.tell, self.site = tell, site
        self._told: set[Hashable] = set()
        """Topics that were told and still hold."""

    def once(self, topic: Hashable, text: str) -> None:
        """Warn once about a topic that is not over yet."""
        if topic not in self._told:
            self._told.add(topic)
            self.tell.warn(text)

    def no_answer(self, words: str, to: str) -> None:
        """The scheduler did not answer to a SUBMISSION or a QUESTION, or the FILES could not be read."""
        what = "the status files cannot be read" if to == FILES else "no answer from the scheduler"
        self.once(to, f"{what}, which changes nothing for the jobs: {words}")

    def answered(self, to: str) -> None:
        """A query that had failed has succeeded."""
        if to in self._told and to != SUBMISSION:
            self.tell.warn(f"the {'status files can be read' if to == FILES else 'scheduler answers'} again")
        self._told.discard(to)

    def never(self, job: MonitoredJob, status: Status) -> None:
        """A job cannot run as things are: once for each reason and rule."""
        text = (
            f"{job.label}: job {job.id} cannot run as things are, says the scheduler: {status.words}. Once it can, it runs. "
            f"If it never will, correct what it asks for (the resources of rule {job.rule}, or `scheduler` in {self.site}), "
            "and delete it. The same is not said of others of this rule"
        )
        self.once(("never", job.rule, status.words), text)

    def changed(self, job: MonitoredJob, status: Status, before: State | None, requeued: bool) -> None:
        """The scheduler reports a job in another state than `before`."""
        which = f"{job.label}: job {status.id}"
        if status.state in PAUSED:
            self.tell.warn(f"{which} is {status.state.value} ({status.words}); it continues when it is released")
        elif status.state is State.UNKNOWN:
            self.tell.warn(f"{which} is in a state that is not known here, {status.words!r}; waiting")
        elif requeued:
            self.requeued(job)
        elif status.state in (State.QUEUED, State.RUNNING) and before in PAUSED:
            self.tell.warn(f"{which} is {status.state.value} again")

    def held_up(self, job: MonitoredJob, by: Sequence[Attempt]) -> None:
        """A job is not submitted as long as these attempts of an earlier driver may make some of its files."""
        ids = ", ".join(attempt.id or attempt.name for attempt in by)
        text = f"{job.label}: waits for job {ids} of an earlier driver, which makes some of its files"
        self.once(("held up", job.key), text)

    def requeued(self, job: MonitoredJob) -> None:
        """The scheduler runs a job a second time."""
        self.tell.warn(f"{job.label}: job {job.id} was requeued; it runs again")

    def full(self, limit: LimitReached) -> None:
        """The scheduler does not take a job for now."""
        waiting = "jobs that ask for as much wait until others end"
        self.once("full", f"the scheduler takes no more jobs for now ({limit}); {waiting}")

    def not_deleted(self, why: Sequence[str], jobs: Sequence[JobRef], leaving: bool) -> None:
        """The scheduler did not delete these jobs; `leaving`: because the driver ends."""
        reasons = "; ".join(list(dict.fromkeys(why))[:MAX_REASONS])
        count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
        ids = " ".join(job.id or job.name for job in jobs)
        then = "The same command adopts what still runs" if leaving else "Delete them by hand"
        self.tell.warn(f"the scheduler did not delete {count} ({reasons}); these may still exist: {ids}. {then}")

    def error(self, job: MonitoredJob, error: OSError) -> None:
        """Handling a job failed, and is tried again."""
        self.once(("error", job.key), f"{job.label}: {error}; trying again")

    def no_error(self, job: MonitoredJob) -> None:
        """Handling a job succeeded."""
        self._told.discard(("error", job.key))
