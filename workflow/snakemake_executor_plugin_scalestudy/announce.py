"""What people are told about jobs: each change and each difficulty once, in a sentence."""

from __future__ import annotations

from typing import Protocol

from snakemake_executor_plugin_scalestudy.decide import Limits
from snakemake_executor_plugin_scalestudy.job import MonitoredJob
from snakemake_executor_plugin_scalestudy.schedulers import State, Status


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
        self._no_answer = ""
        self._full_was_said = False
        self._errors: dict[int, str] = {}
        """By job, the error that was told last."""

    def no_answer(self, words: str) -> None:
        """The scheduler, or the folder of the status files, did not answer."""
        if words != self._no_answer:
            self.tell.warn(f"no answer from the scheduler, which changes nothing for the jobs: {words}")
        self._no_answer = words

    def answered(self) -> None:
        """The scheduler answered."""
        if self._no_answer:
            self.tell.warn("the scheduler answers again")
            self._no_answer = ""

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
