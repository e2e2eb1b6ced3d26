"""Submission: on disk before the scheduler hears of it, within the budget, at a rate, and again when a limit stops it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from snakemake_executor_plugin_multinode.clock import Clock
from snakemake_executor_plugin_multinode.decide import Limits
from snakemake_executor_plugin_multinode.job import Asked, MonitoredJob
from snakemake_executor_plugin_multinode.records import Attempt, Records, job_name
from snakemake_executor_plugin_multinode.runstate import file_stamp
from snakemake_executor_plugin_multinode.schedulers import LimitReached, NoAnswer, Refused, Request, Scheduler

UNANSWERED_PAUSE_S = 20.0
"""After a scheduler that did not answer, so long no submission is tried."""
UNWRITTEN_PAUSE_S = 5.0
"""The same after a disk that could not be written."""
FULL_PAUSES_S = 5.0, 60.0
"""After a scheduler that takes no more jobs of this user for now: the first pause, and the longest."""


class NotSubmitted(Exception):
    """The job cannot be submitted, now or later; the message says why."""


class Submitter:
    """Submits one job at a time."""

    def __init__(self, scheduler: Scheduler, records: Records, limits: Limits, clock: Clock) -> None:
        self.scheduler, self.records, self.limits, self.clock = scheduler, records, limits, clock
        self.due_s = 0.0
        """When the next submission may be tried."""
        self._full_pause_s = FULL_PAUSES_S[0]

    def due(self) -> bool:
        """Whether a submission may be tried now."""
        return self.clock.now_s() >= self.due_s

    def pause(self, seconds: float) -> None:
        """Try no submission for so long."""
        self.due_s = self.clock.now_s() + seconds

    def room(self) -> None:
        """A job has ended, so that a scheduler which took no more may take one."""
        if self._full_pause_s > FULL_PAUSES_S[0]:
            self._full_pause_s = FULL_PAUSES_S[0]
            self.pause(1 / self.limits.per_s)

    def submit(self, job: MonitoredJob) -> NoAnswer | None:
        """Add an attempt to the job's record and submit it; NoAnswer if the scheduler may have it, or not.

        NotSubmitted, where it never will be; LimitReached, where it may be later; OSError, where nothing was submitted
        because it could not be written down. In each of these the record's attempts are what they were before.
        """
        self.pause(1 / self.limits.per_s)
        request = self._prepared(job)
        attempt = Attempt(
            name=request.name,
            id=None,
            submitted_s=self.clock.unix_s(),
            gpu_hours=request.gpu_hours,
            gpus=request.gpus_held,
            state_before=file_stamp(job.work.state_file),
        )
        job.record.attempts.append(attempt)
        try:
            self.records.write(job.record)
            self.records.note_submission(job.record, attempt, request, self.scheduler.settings)
            job.asked = Asked(request.mem_mb, request.runtime_min)
            attempt.id = self._submitted(request)
        except NoAnswer as error:
            self.pause(UNANSWERED_PAUSE_S)
            return error
        except Refused as error:
            self._take_back(job, f"refused: {error}")
            raise NotSubmitted(f"the scheduler refused it: {error}") from None
        except LimitReached as error:
            self.pause(self._full_pause_s)
            self._full_pause_s = min(2 * self._full_pause_s, FULL_PAUSES_S[1])
            self._take_back(job, f"not taken: {error}")
            raise
        except OSError:
            self.pause(UNWRITTEN_PAUSE_S)
            job.record.attempts.remove(attempt)
            with suppress(OSError):  # or the next driver would look for a job that was never submitted
                self.records.write(job.record)
            raise
        self._full_pause_s = FULL_PAUSES_S[0]
        return None

    def _prepared(self, job: MonitoredJob) -> Request:
        """The request, with its script on disk."""
        name = job_name(job.work.rule, job.work.wildcards)
        folder = self.records.folder_of(job.work.key)
        try:
            folder.mkdir(exist_ok=True)  # not the folders above it: a project that was moved is not begun anew
            request = job.work.request(name, folder / f"{name}.sh", folder / f"{name}.log")
            request = with_avoided(request, job.record.attempts)
            self.scheduler.submit_command(request)
            self._check_budget(request)
            job.work.write_script(request)
        except ValueError as error:
            raise NotSubmitted(f"not submitted: {error}") from None
        except OSError:
            self.pause(UNWRITTEN_PAUSE_S)
            raise
        return request

    def _submitted(self, request: Request) -> str:
        """Submit; a scheduler that cannot do without a node that failed before may have it."""
        try:
            return self.scheduler.submit(request)
        except Refused:
            if not request.avoid:
                raise
        return self.scheduler.submit(replace(request, avoid=()))

    def _take_back(self, job: MonitoredJob, why: str) -> None:
        """The scheduler does not have the attempt: it used nothing, and is no part of the record."""
        attempt = job.record.attempts.pop()
        attempt.cause = why
        self.records.note_end(attempt, 0.0)
        self.records.write(job.record)

    def _check_budget(self, request: Request) -> None:
        budget = self.limits.budget_gpu_hours
        if budget is None or request.gpus_held == 0:
            return
        hours = request.gpu_hours
        if hours is None:
            raise ValueError("with budget_gpu_hours each job on nodes with GPUs needs the resource `runtime`")
        spent = self.records.gpu_hours()
        if spent + hours > budget:
            raise ValueError(
                f"it may use {hours:.4g} GPU hours, {spent:.4g} of the budget of {budget:.4g} are used or asked for; "
                "raise budget_gpu_hours to continue"
            )


def with_avoided(request: Request, attempts: Sequence[Attempt]) -> Request:
    """The request, without the nodes that failed under earlier attempts."""
    if request.hosts:  # it is about these nodes, whatever they did
        return request
    avoid = tuple(dict.fromkeys(attempt.host for attempt in attempts if attempt.node_fault and attempt.host))
    return replace(request, avoid=avoid) if avoid else request
