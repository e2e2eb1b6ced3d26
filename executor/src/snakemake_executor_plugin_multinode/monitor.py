"""Follows all jobs of a driver to their ends: one thread that observes, decides and acts, in rounds.

A job is in one place, `JobMonitor.jobs`, from the moment it is taken in until its success or failure is reported. Each
round handles each job for itself: an action's record is written before the job's state changes, so an
error of the file system leaves the job as it was, to be handled again in the next round.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from snakemake_executor_plugin_multinode.decide import Limits, apply_status, begun_again, decide
from snakemake_executor_plugin_multinode.job import Action, Decision, JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.messages import FILES, QUESTION, SUBMISSION, Messages
from snakemake_executor_plugin_multinode.observe import SOON_S, Evidence, Observer
from snakemake_executor_plugin_multinode.orphans import Orphans, note_end
from snakemake_executor_plugin_multinode.records import Record, Records
from snakemake_executor_plugin_multinode.schedulers import JobRef, LimitReached, NoAnswer, Scheduler, State, Status
from snakemake_executor_plugin_multinode.status_files import End, StatusFiles
from snakemake_executor_plugin_multinode.submit import NotSubmitted, Submitter

RAN = (State.RUNNING, State.SUSPENDED, State.ENDED)


class JobMonitor:
    """All jobs of one driver; `tell` is its executor, which hears of changes, waits, successes and failures."""

    def __init__(
        self,
        scheduler: Scheduler,
        records: Records,
        files: StatusFiles,
        tell: Any,
        limits: Limits,
        driver_began_ns: int,
        site: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler, self.records, self.files, self.tell, self.limits = scheduler, records, files, tell, limits
        self.now_s, self.driver_began_ns = now_s, driver_began_ns
        self.jobs: list[MonitoredJob] = []
        self.messages = Messages(tell, site)
        self.observer = Observer(scheduler, files, limits.poll_s, now_s)
        self.submitter = Submitter(scheduler, records, limits, now_s)
        self.orphans = Orphans(records, files, limits, now_s, driver_began_ns)
        self.undeleted: dict[str, JobRef] = {}
        """By name, the jobs that the scheduler did not delete when it was asked: the next deletion asks for them again."""
        self.stopping = threading.Event()
        self.wake = self.observer.wake
        self._new: queue.SimpleQueue[MonitoredJob] = queue.SimpleQueue()
        self._found_orphans = False

    # called by the executor, from Snakemake's own thread

    def add(self, job: MonitoredJob) -> None:
        """Follow a job: adopt an earlier driver's submission, or submit it."""
        self._new.put(job)
        self.wake.set()

    # one round

    def round(self) -> None:
        """Check every job once."""
        if not self._found_orphans:
            with contextlib.suppress(OSError):  # tried again in the next round
                self.orphans.find({job.attempt.name for job in self.jobs if job.record.attempts})
                self._found_orphans = True
        while not self._new.empty():
            self.jobs.append(self._new.get())
        self._take_answers()
        names = self._names()
        for job in list(self.jobs):
            if self.stopping.is_set() or names is None:
                break
            self._handle(job, names)
        if not self.stopping.is_set():
            followed = [JobRef(job.attempt.name, job.attempt.id) for job in self.jobs if job.submitted]
            self.observer.ask([*followed, *self.orphans.jobs()])

    def pause(self) -> None:
        """Wait until something may have changed or is due: a submission, or else a look at the status files."""
        waiting = (job for job in self.jobs if job.state.phase is Phase.TO_SUBMIT)
        self.wake.wait(min([1.0, self.limits.poll_s, *map(self.submitter.due_in_s, waiting)]))
        self.wake.clear()

    def _names(self) -> set[str] | None:
        """All status files; None without jobs, or where the folder cannot be read, which proves nothing."""
        if not self.jobs:
            return None
        try:
            names = self.observer.names()
        except OSError as error:
            self.messages.no_answer(str(error), FILES)
            self.submitter.pause(1.0)
            return None
        self.messages.answered(FILES)
        return names

    # answers of the scheduler

    def _take_answers(self) -> None:
        for answer in self.observer.answers():
            if isinstance(answer.statuses, NoAnswer):
                self.messages.no_answer(str(answer.statuses), QUESTION)
                continue
            unanswered = [status.words for status in answer.statuses.values() if status.state is State.UNANSWERED]
            if unanswered:
                self.messages.no_answer(unanswered[0], QUESTION)
            else:
                self.messages.answered(QUESTION)
            for job in self.jobs:
                if job.submitted and job.known_s < answer.asked_s:
                    self._apply_status(job, answer.statuses.get(job.attempt.name), answer.asked_s)
            with contextlib.suppress(OSError):  # the next answer comes
                self.orphans.apply_statuses(answer.statuses, answer.asked, answer.asked_s)

    def _apply_status(self, job: MonitoredJob, status: Status | None, asked_s: float) -> None:
        """Take one job's part of an answer."""
        before, job.state = job.state, apply_status(job.state, status, asked_s, self.now_s())
        if status is None or status.state is State.UNANSWERED:
            return
        if job.attempt.id is None:
            job.attempt.id, job.unsaved = status.id, True
            self.tell.say(f"{job.label}: found as {status.id}")
        known, words = before.reported, "" if before.status is None else before.status.words
        if status.state is not State.UNKNOWN and (status.state, status.words) != (known, words):
            self.tell.waits(job, "" if status.state in RAN else f"{status.state.value}: {status.words}")
        elif status.state is State.NEVER:  # in two answers: the first reason of a new job may be another
            self.messages.never(job, status)
        if status.state is not known:
            requeued = known in RAN and status.state is State.QUEUED and job.state.phase is Phase.ALIVE
            self.messages.changed(job, status, known, requeued)

    # decisions

    def _handle(self, job: MonitoredJob, names: set[str]) -> None:
        """Decide about one job and act; an error leaves it as it is, and is told once."""
        try:
            self._save(job)
            evidence = Evidence(job, self.files, names, self.scheduler, self.driver_began_ns)
            self._act(job, decide(job, evidence, self.now_s(), self.limits))
            self.messages.no_error(job)
        except OSError as error:
            self.messages.error(job, error)
        except Exception as error:
            there = f"job {job.id} may still run" if job.record.open else "it was not submitted"
            self._fail(job, f"this executor failed on it, {there}: {type(error).__name__}: {error}.")

    def _save(self, job: MonitoredJob) -> None:
        if job.unsaved:
            self.records.write(job.record)
            self.records.note_id(job.attempt)
            job.unsaved = False

    def _act(self, job: MonitoredJob, decision: Decision) -> None:
        match decision.action:
            case Action.READ_RECORD:
                self._read_record(job)
            case Action.SUBMIT:
                if self.submitter.due_in_s(job) == 0.0:
                    self._submit(job)
            case Action.FORBID:
                job.state = replace(decision.state, forbidden=self.files.void(job.attempt.name))
            case Action.REQUEUED:
                self._requeued(job, job.state.end, decision.state)
            case Action.UNCANCEL:
                job.attempt.cancelled = False
                self.records.write(job.record)
                self.tell.say(f"{job.label}: job {job.id}: {decision.why}")
                job.state = decision.state
            case Action.WAIT:
                job.state = decision.state
            case Action.ASK:
                self.observer.ask_within(SOON_S if job.state.phase is Phase.ENDING else 0.0)
                job.state = decision.state
            case _:
                self._end(job, decision)

    def _read_record(self, job: MonitoredJob) -> None:
        """Adopt an earlier submission of a job, or have it submitted."""
        now_s = self.now_s()
        try:
            record = self.records.read(job.key, job.label)
        except ValueError as error:
            self._fail(job, f"not submitted: {error}.")
            return
        self.orphans.take_up(record)
        record.outputs = job.outputs
        if not record.open and job.outputs:
            # A job of another name, or a group with other members, may still make the same files: a second writer.
            if before := self.orphans.making(job.outputs):
                self.messages.held_up(job, before)
            if before or not self._found_orphans:
                return
        if not record.open:
            for old in record.attempts:
                self.files.forget(old.name, keep_token=True)
            job.state = JobState(Phase.TO_SUBMIT, now_s)
            return
        job.record, job.adopted, job.known_s = record, True, now_s
        job.state = JobState(Phase.SUBMITTED, now_s)
        but = ", although its deletion was asked for: if it is deleted, it is submitted again"
        self.tell.say(f"{job.label}: adopted as {job.id}{but if job.attempt.cancelled else ''}")

    def _submit(self, job: MonitoredJob) -> None:
        try:
            unclear = self.submitter.submit(job)
        except NotSubmitted as error:
            self._fail(job, f"{error}.")
            return
        except LimitReached as error:
            self.messages.answered(SUBMISSION)
            self.messages.full(error)
            return
        now_s = self.now_s()
        job.adopted, job.known_s, job.state = False, now_s, JobState(Phase.SUBMITTED, now_s)
        if unclear is not None:
            self.messages.no_answer(str(unclear), SUBMISSION)
            return
        self.messages.answered(SUBMISSION)
        job.unsaved = True
        number = job.record.number
        attempt = f", attempt {number}" if number > 1 else ""
        self.tell.say(f"{job.label}: submitted as {job.attempt.id}{attempt}")
        self._save(job)

    # the end of an attempt

    def _end(self, job: MonitoredJob, decision: Decision) -> None:
        """Record the end of an attempt and act on it, unless the job has just begun a second time."""
        attempt, end = job.attempt, decision.state.end
        if decision.action is not Action.SUCCEED and not self._at_rest(job, decision):
            return
        attempt.cause, attempt.node_fault = decision.why, decision.node_fault
        attempt.progress, attempt.host = decision.progress, decision.host
        attempt.never_ran = decision.action is Action.RESUBMIT
        outcome = {Action.SUCCEED: "finished", Action.FAIL: "failed"}.get(decision.action, "")
        self.records.write(replace(job.record, outcome=outcome))
        note_end(self.records, self.files, attempt, end)
        job.record.outcome = outcome
        self.submitter.room()
        which = f"{job.label}: job {job.id}"
        match decision.action:
            case Action.SUCCEED:
                self._succeed(job)
                return
            case Action.FAIL:
                log = self.records.folder_of(job.key) / f"{attempt.name}.log"
                place = f" The job's own output: {log}." if log.exists() else ""
                self._fail(job, f"job {job.id}: {decision.why}.{place}")
                return
            case Action.CONTINUE:
                self.tell.warn(f"{which}: {decision.why}; it continues in a new job")
            case Action.RESUBMIT:
                self.tell.say(f"{which} {decision.why}; it is submitted now")
            case Action.START_OVER:
                self.tell.say(f"{which}: {decision.why}; it is made again")
                job.record = Record(job.key, job.label, outputs=job.outputs)
        job.state = JobState(Phase.TO_SUBMIT, self.now_s())

    def _fail(self, job: MonitoredJob, why: str) -> None:
        """Report a failure, also of a job that was never submitted."""
        self.jobs.remove(job)
        if not job.submitted and job.prepared is not None:
            with contextlib.suppress(OSError):
                self.records.withdraw(job.prepared, why)
        if not job.submitted and job.record.attempts:  # a chain that cannot be continued is no living job
            job.record.outcome = "failed"
            with contextlib.suppress(OSError):
                self.records.write(job.record)
        self.tell.failed(job, why)

    def _requeued(self, job: MonitoredJob, end: End | None, state: JobState) -> None:
        """The scheduler runs the job a second time: its use is kept, its end is not judged."""
        before = job.attempt.used_before_s
        if end is not None:
            job.attempt.used_before_s += end.ended_s - end.began_s
        try:
            self.records.write(job.record)
            if end is not None and not begun_again(end, self.files.began(job.attempt.name)):
                self.files.forget(job.attempt.name, keep_token=True)
        except OSError:
            job.attempt.used_before_s = before
            raise
        job.state = state
        self.messages.requeued(job)

    def _delete(self, doomed: Sequence[MonitoredJob], leaving: bool = False) -> None:
        """Have the scheduler delete the last attempt of each of these jobs; `leaving`: because the driver ends."""
        jobs = []
        for job in doomed:
            job.attempt.cancelled = True
            try:
                self.records.write(job.record)
            except OSError as error:  # with a full disk too, the deletion is what was requested
                self.tell.warn(f"{job.label}: {error}")
            # A scheduler that has forgotten a job may have given its id to another.
            missing = job.state.phase is Phase.MISSING
            jobs.append(JobRef(job.attempt.name, None if missing else job.attempt.id))
        asked = {job.name: job for job in [*self.undeleted.values(), *jobs]}
        if not asked:
            return
        left = self.scheduler.cancel(list(asked.values()))
        self.undeleted = {name: asked[name] for name in left}
        if left:
            self.messages.not_deleted(list(left.values()), list(self.undeleted.values()), leaving)

    def _at_rest(self, job: MonitoredJob, decision: Decision) -> bool:
        """Forbid a judged job to run again; False if it has begun again in this moment."""
        end = decision.state.end
        self.files.revoke(job.attempt.name)
        if end is not None and begun_again(end, self.files.began(job.attempt.name)):
            self._delete([job])
            self._requeued(job, end, JobState(Phase.SUBMITTED, self.now_s()))
            return False
        if decision.delete:
            self._delete([job])
        return True

    def _succeed(self, job: MonitoredJob) -> None:
        self.jobs.remove(job)
        self.tell.succeeded(job)
        if self.scheduler.copies_output and job.state.reported is not State.ENDED:
            self.orphans.keep(job.record)
            return
        with contextlib.suppress(OSError):  # a file that remains must not hold up a success
            self.orphans.forget(job.record)

    # cancelling

    def say_cancelling(self) -> None:
        """Announce the deletion, which may take a while."""
        if any(job.submitted for job in self.jobs):
            doing = f"cancelling {self.submitted_jobs()}; this may take a while"
            self.tell.warn(f"multinode: {doing}. The same command resumes")

    def submitted_jobs(self) -> str:
        """Return how many jobs the scheduler has: `1 job`, `3 jobs`."""
        count = sum(job.submitted for job in self.jobs)
        return "1 job" if count == 1 else f"{count} jobs"

    def cancel_all(self) -> None:
        """Ask the scheduler to delete every job that this driver follows, and nothing else."""
        self._delete([job for job in self.jobs if job.submitted], leaving=True)

    def leave(self) -> None:
        """This driver ends: it submits no more jobs."""
        for job in self.jobs:
            if job.prepared is not None and not job.submitted:
                with contextlib.suppress(OSError):  # the next driver finds that line, and ends it
                    self.records.withdraw(job.prepared, "not taken by the scheduler before its driver ended")
