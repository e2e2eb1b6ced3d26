"""Submission: on disk before the scheduler hears of it, within the budget, at a rate, and again when a limit stops it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from snakemake_executor_plugin_multinode.decide import Limits
from snakemake_executor_plugin_multinode.job import MonitoredJob
from snakemake_executor_plugin_multinode.records import Attempt, Records, job_name
from snakemake_executor_plugin_multinode.schedulers import LimitReached, NoAnswer, Refused, Request, Scheduler
from snakemake_executor_plugin_multinode.status_files import file_stamp

UNANSWERED_PAUSE_S = 20.0
"""Pause of submissions after a scheduler that did not answer."""
UNWRITTEN_PAUSE_S = 5.0
"""The same after a disk that could not be written."""
FULL_PAUSE_S = 20.0
"""Pause of jobs that a limit on the jobs of this user keeps out."""


class Submitter:
    """Submit one job at a time. At a limit, all jobs with the same request wait."""

    def __init__(self, scheduler: Scheduler, records: Records, limits: Limits, now_s: Callable[[], float]) -> None:
        self.scheduler, self.records, self.limits, self.now_s = scheduler, records, limits, now_s
        self.due_s = 0.0
        """When the next submission may be tried, of any job."""
        self._full: dict[tuple[object, ...], float] = {}
        """By size, until when no job is tried: one has met a limit."""

    def due_in_s(self, job: MonitoredJob) -> float:
        """Seconds until a submission of this job may be tried."""
        full_s = 0.0 if job.request is None else self._full.get(size_of(job.request), 0.0)
        return max(0.0, max(self.due_s, full_s) - self.now_s())

    def pause(self, seconds: float) -> None:
        """Try no submission for so long."""
        self.due_s = self.now_s() + seconds

    def room(self) -> None:
        """A job has ended, so that a scheduler which took no more may take one."""
        self._full.clear()

    def submit(self, job: MonitoredJob) -> None:
        """Add an attempt to the job's record and submit it.

        NoAnswer, where the scheduler may have it or not, and Refused, where it never will. Else the record's attempts are as
        they were: ValueError, with a sentence, where it cannot be submitted, LimitReached, where it may be later, OSError,
        where it could not be recorded.
        """
        if job.request is None:
            raise ValueError(job.refusal)
        self._check_budget(job.request)
        name, folder = job_name(job.rule, job.wildcards), self.records.folder_of(job.key)
        avoid = hosts_to_avoid(job.request, job.record.attempts)
        request = replace(job.request, name=name, script=folder / f"{name}.sh", log=folder / f"{name}.log", avoid=avoid)
        self.scheduler.submit_command(request)
        attempt = Attempt(name, None, request.gpu_hours, request.gpus_held, file_stamp(job.state_file))
        job.record.attempts.append(attempt)
        try:
            self.records.write(job.record)
            job.write_script(request)
            self.records.hours[name] = request.gpu_hours or 0.0
            attempt.id = self._submitted(request)
        except NoAnswer:
            self.pause(UNANSWERED_PAUSE_S)
            raise
        except (LimitReached, OSError, ValueError) as error:
            if isinstance(error, LimitReached):
                self._full[size_of(request)] = self.now_s() + FULL_PAUSE_S
            elif isinstance(error, OSError):
                self.pause(UNWRITTEN_PAUSE_S)
            self._take_back(job, request)
            raise

    def _submitted(self, request: Request) -> str:
        """Submit; a scheduler that cannot do without a node that failed before may have it."""
        try:
            return self.scheduler.submit(request)
        except Refused:
            if not request.avoid:
                raise
            return self.scheduler.submit(replace(request, avoid=()))
        finally:
            self.pause(1 / self.limits.per_s)  # from the answer on: a slow scheduler gets one job a round

    def _take_back(self, job: MonitoredJob, request: Request) -> None:
        """The scheduler does not have the attempt: it is no part of the record, and uses nothing."""
        job.record.attempts.pop()
        self.records.hours.pop(request.name, None)
        with suppress(OSError):  # or the next driver would look for a job that was never submitted
            request.script.unlink(missing_ok=True)
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


def size_of(request: Request) -> tuple[object, ...]:
    """Queue, account and quality of service, by which the jobs of a user are limited; nodes, cores, GPUs and MiB."""
    cores = request.nodes * request.ranks_per_node * request.cpus_per_rank
    amount = request.nodes, cores, request.gpus_held, request.nodes * (request.mem_mb or 0)
    return request.queue, request.account, request.qos, *amount


def hosts_to_avoid(request: Request, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Return the nodes that failed under earlier attempts; none where the job is about certain nodes."""
    failed = [attempt.host for attempt in attempts if attempt.node_fault and attempt.host]
    return () if request.hosts else tuple(dict.fromkeys(failed))
