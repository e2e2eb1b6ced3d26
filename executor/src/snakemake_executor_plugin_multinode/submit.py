"""Submission: on disk before the scheduler hears of it, within the budget, at a rate, and again when a limit stops it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import ge
from pathlib import Path

from snakemake_executor_plugin_multinode.clock import Clock
from snakemake_executor_plugin_multinode.decide import Limits
from snakemake_executor_plugin_multinode.job import Asked, MonitoredJob, Size
from snakemake_executor_plugin_multinode.records import Attempt, Intent, Record, Records, job_name
from snakemake_executor_plugin_multinode.runstate import file_stamp
from snakemake_executor_plugin_multinode.schedulers import LimitReached, NoAnswer, Refused, Request, Scheduler

UNANSWERED_PAUSE_S = 20.0
"""After a scheduler that did not answer, so long no submission is tried."""
UNWRITTEN_PAUSE_S = 5.0
"""The same after a disk that could not be written."""
FULL_PAUSES_S = 5.0, 60.0
"""After a job that a limit on the jobs of this user kept out: the first pause of those that it keeps out too, and the
longest."""


class NotSubmitted(Exception):
    """The job cannot be submitted, now or later; the message says why."""


@dataclass(frozen=True)
class Full:
    """A limit that was met: until `until_s` no job is tried there that asks for as much."""

    place: tuple[str | None, ...]
    least: tuple[int, ...]
    pause_s: float
    until_s: float

    def holds(self, size: Size) -> bool:
        """Whether a job of this size would meet it too."""
        return size.place == self.place and all(map(ge, size.amount, self.least))


class Submitter:
    """Submits one job at a time. One that meets a limit waits, with those that would meet it too; others are tried."""

    def __init__(self, scheduler: Scheduler, records: Records, limits: Limits, clock: Clock) -> None:
        self.scheduler, self.records, self.limits, self.clock = scheduler, records, limits, clock
        self.due_s = 0.0
        """When the next submission may be tried, of any job."""
        self._full: list[Full] = []

    def due_in_s(self, job: MonitoredJob) -> float:
        """Seconds until a submission of this job may be tried."""
        due_s = self.due_s
        if self._full and (size := _size(job)) is not None:
            due_s = max([due_s, *(full.until_s for full in self._full if full.holds(size))])
        return max(0.0, due_s - self.clock.now_s())

    def pause(self, seconds: float) -> None:
        """Try no submission for so long."""
        self.due_s = self.clock.now_s() + seconds

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
        intent = self._prepared(job)
        request = intent.request
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
            self._note(job.record, attempt, intent)
            job.asked = Asked(request.mem_mb, request.runtime_min)
            attempt.id = self._submitted(request)
        except NoAnswer as error:
            job.intent = None
            self.pause(UNANSWERED_PAUSE_S)
            return error
        except Refused as error:
            self._take_back(job)
            raise NotSubmitted(f"the scheduler refused it: {error}") from None
        except LimitReached as error:
            self._wait_behind(_size_of(request), error.by_size)
            self._take_back(job)
            raise
        except OSError:
            self.pause(UNWRITTEN_PAUSE_S)
            job.record.attempts.remove(attempt)
            with suppress(OSError):  # or the next driver would look for a job that was never submitted
                self.records.write(job.record)
            raise
        job.intent = None
        size = _size_of(request)
        self._full = [full for full in self._full if not full.holds(size)]
        return None

    def _prepared(self, job: MonitoredJob) -> Intent:
        """Prepare a submission, with its script on disk: once, however often it is tried."""
        try:
            if job.intent is None:
                job.intent = Intent(self._request(job))
            self._check_budget(job.intent.request)
        except ValueError as error:
            raise NotSubmitted(f"not submitted: {error}") from None
        except OSError:
            self.pause(UNWRITTEN_PAUSE_S)
            raise
        return job.intent

    def _request(self, job: MonitoredJob) -> Request:
        """A request under a new name, its script written. ValueError, with a sentence, where there can be none."""
        name = job_name(job.work.rule, job.work.wildcards)
        folder = self.records.folder_of(job.work.key)
        folder.mkdir(exist_ok=True)  # not the folders above it: a project that was moved is not begun anew
        request = job.work.request(name, folder / f"{name}.sh", folder / f"{name}.log")
        request = with_avoided(request, job.record.attempts)
        self.scheduler.submit_command(request)
        job.work.write_script(request)
        return request

    def _note(self, record: Record, attempt: Attempt, intent: Intent) -> None:
        """A line in the ledger, once for all tries."""
        if intent.attempt is None:
            self.records.note_submission(record, attempt, intent.request, self.scheduler.settings)
            intent.attempt = attempt
        else:
            self.records.hours[attempt.name] = attempt.gpu_hours or 0.0

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

    def _wait_behind(self, size: Size, by_size: bool) -> None:
        """Let jobs wait that would meet the same limit: on the number of jobs in a queue, or on their request there."""
        least = size.amount if by_size else tuple(0 for _ in size.amount)
        before = [full for full in self._full if (full.place, full.least) == (size.place, least)]
        pause_s = min(2 * before[0].pause_s, FULL_PAUSES_S[1]) if before else FULL_PAUSES_S[0]
        self._full = [full for full in self._full if full not in before]
        self._full.append(Full(size.place, least, pause_s, self.clock.now_s() + pause_s))

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


def _size(job: MonitoredJob) -> Size | None:
    """How much a job asks for; None where it cannot be submitted, which its submission says."""
    if job.size is None:
        with suppress(ValueError):
            job.size = _size_of(job.work.request("probe", Path("/probe"), Path("/probe")))
    return job.size


def _size_of(request: Request) -> Size:
    cores = request.nodes * request.ranks_per_node * request.cpus_per_rank
    amount = request.nodes, cores, request.gpus_held, request.nodes * (request.mem_mb or 0)
    return Size((request.queue, request.account, request.qos), amount)


def with_avoided(request: Request, attempts: Sequence[Attempt]) -> Request:
    """The request, without the nodes that failed under earlier attempts."""
    if request.hosts:  # it is about these nodes, whatever they did
        return request
    avoid = tuple(dict.fromkeys(attempt.host for attempt in attempts if attempt.node_fault and attempt.host))
    return replace(request, avoid=avoid) if avoid else request
