"""Submission: on disk before the scheduler hears of it, within the budget, at a rate, and again when a limit stops it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import ge

from snakemake_executor_plugin_multinode.decide import Limits
from snakemake_executor_plugin_multinode.job import MonitoredJob
from snakemake_executor_plugin_multinode.records import Attempt, Records, job_name
from snakemake_executor_plugin_multinode.runstate import file_stamp
from snakemake_executor_plugin_multinode.schedulers import LimitReached, NoAnswer, Refused, Request, Scheduler

UNANSWERED_PAUSE_S = 20.0
"""Pause of submissions after a scheduler that did not answer."""
UNWRITTEN_PAUSE_S = 5.0
"""The same after a disk that could not be written."""
FULL_PAUSE_S = 20.0
"""Pause of jobs that a limit on the jobs of this user keeps out."""


class NotSubmitted(Exception):
    """The job cannot be submitted, now or later; the message says why."""


@dataclass(frozen=True)
class Full:
    """A limit that was met: until `until_s` no job is tried there whose request is as large."""

    place: tuple[str | None, ...]
    least: tuple[int, ...]
    until_s: float

    def holds(self, request: Request) -> bool:
        """Whether a job of this request would meet it too."""
        return place_of(request) == self.place and all(map(ge, amount_of(request), self.least))


class Submitter:
    """Submits one job at a time. One that meets a limit waits, with those that would meet it too; others are tried."""

    def __init__(self, scheduler: Scheduler, records: Records, limits: Limits, now_s: Callable[[], float]) -> None:
        self.scheduler, self.records, self.limits, self.now_s = scheduler, records, limits, now_s
        self.due_s = 0.0
        """When the next submission may be tried, of any job."""
        self._full: list[Full] = []

    def due_in_s(self, job: MonitoredJob) -> float:
        """Seconds until a submission of this job may be tried."""
        request = job.request
        waits = [full.until_s for full in self._full if request is not None and full.holds(request)]
        return max(0.0, max([self.due_s, *waits]) - self.now_s())

    def pause(self, seconds: float) -> None:
        """Try no submission for so long."""
        self.due_s = self.now_s() + seconds

    def room(self) -> None:
        """A job has ended, so that a scheduler which took no more may take one."""
        self._full.clear()

    def submit(self, job: MonitoredJob) -> NoAnswer | None:
        """Add an attempt to the job's record and submit it; NoAnswer if the scheduler may have it, or not.

        NotSubmitted, where it never will be; LimitReached, where it may be later; OSError, where nothing was submitted
        because it could not be recorded. In each of these the record's attempts stay as they were, and all that
        was prepared is used by the next try.
        """
        self.pause(1 / self.limits.per_s)
        try:
            request = job.prepared = job.prepared or self._prepared(job)
            self._check_budget(request)
            attempt = Attempt(request.name, None, request.gpu_hours, request.gpus_held, file_stamp(job.state_file))
            job.record.attempts.append(attempt)
            self.records.write(job.record)
            if request.name not in self.records.hours:  # one line for all tries
                self.records.note_submission(job.label, attempt)
            self.records.hours[request.name] = request.gpu_hours or 0.0
            attempt.id = self._submitted(request)
        except ValueError as error:
            raise NotSubmitted(f"not submitted: {error}") from None
        except NoAnswer as error:
            job.prepared = None
            self.pause(UNANSWERED_PAUSE_S)
            return error
        except Refused as error:
            self._take_back(job)
            raise NotSubmitted(f"the scheduler refused it: {error}") from None
        except LimitReached:
            still_full = [full for full in self._full if full.until_s > self.now_s()]
            self._full = [*still_full, Full(place_of(request), amount_of(request), self.now_s() + FULL_PAUSE_S)]
            self._take_back(job)
            raise
        except OSError:
            self.pause(UNWRITTEN_PAUSE_S)
            if job.prepared is not None and any(one.name == job.prepared.name for one in job.record.attempts):
                job.record.attempts.pop()
                with suppress(OSError):  # or the next driver would look for a job that was never submitted
                    self.records.write(job.record)
            raise
        job.prepared = None
        self._full = [full for full in self._full if not full.holds(request)]
        return None

    def _prepared(self, job: MonitoredJob) -> Request:
        """A request under a new name, its script written. ValueError, with a sentence, where there can be none."""
        name = job_name(job.rule, job.wildcards)
        folder = self.records.folder_of(job.key)
        folder.mkdir(exist_ok=True)  # not the folders above it: a project that was moved is not begun anew
        request = job.request_for(name, folder / f"{name}.sh", folder / f"{name}.log")
        request = with_avoided(request, job.record.attempts)
        self.scheduler.submit_command(request)
        job.write_script(request)
        return request

    def _submitted(self, request: Request) -> str:
        """Submit; a scheduler that cannot do without a node that failed before may have it."""
        try:
            return self.scheduler.submit(request)
        except Refused:
            if not request.avoid:
                raise
        return self.scheduler.submit(replace(request, avoid=()))

    def _take_back(self, job: MonitoredJob) -> None:
        """The scheduler does not have the attempt: it is no part of the record, and uses nothing."""
        attempt = job.record.attempts.pop()
        self.records.hours[attempt.name] = 0.0
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


def place_of(request: Request) -> tuple[str | None, ...]:
    """Queue, account and quality of service: limits on the jobs of a user are counted by these."""
    return request.queue, request.account, request.qos


def amount_of(request: Request) -> tuple[int, ...]:
    """Nodes, cores, GPUs and MiB of a job."""
    cores = request.nodes * request.ranks_per_node * request.cpus_per_rank
    return request.nodes, cores, request.gpus_held, request.nodes * (request.mem_mb or 0)


def with_avoided(request: Request, attempts: Sequence[Attempt]) -> Request:
    """The request, without the nodes that failed under earlier attempts."""
    if request.hosts:  # it is about these nodes, whatever they did
        return request
    avoid = tuple(dict.fromkeys(attempt.host for attempt in attempts if attempt.node_fault and attempt.host))
    return replace(request, avoid=avoid) if avoid else request
