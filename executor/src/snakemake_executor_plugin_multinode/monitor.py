"""Follows all jobs of a driver to their ends: one thread that observes, decides and acts, in rounds.

A job is in one place, `JobMonitor.jobs`, from the moment it is taken in until its success or failure is reported. Each
round handles each job for itself: what was to be written for an action is written before the job's state changes, so an
error of the file system leaves the job as it was, to be handled again in the next round.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from dataclasses import replace
from pathlib import Path

from snakemake_executor_plugin_multinode.announce import FILES, QUESTION, SUBMISSION, Announcer, Reporter
from snakemake_executor_plugin_multinode.clock import Clock
from snakemake_executor_plugin_multinode.decide import ENDS, Action, Decision, Limits, decide, heard
from snakemake_executor_plugin_multinode.endings import Endings
from snakemake_executor_plugin_multinode.job import Asked, JobState, MonitoredJob, Phase, SnakemakeJob
from snakemake_executor_plugin_multinode.leftovers import Leftovers
from snakemake_executor_plugin_multinode.observe import Background, Listing, Observer, in_thread
from snakemake_executor_plugin_multinode.records import Record, Records
from snakemake_executor_plugin_multinode.schedulers import JobRef, LimitReached, NoAnswer, Scheduler, State, Status
from snakemake_executor_plugin_multinode.status_files import StatusFiles
from snakemake_executor_plugin_multinode.submit import NotSubmitted, Submitter

NOT_SUBMITTED = (Phase.NEW, Phase.TO_SUBMIT)
RAN = (State.RUNNING, State.SUSPENDED, State.ENDED)


class JobMonitor:
    """All jobs of one driver."""

    def __init__(
        self,
        scheduler: Scheduler,
        records: Records,
        files: StatusFiles,
        tell: Reporter,
        limits: Limits,
        driver_began_ns: int,
        clock: Clock | None = None,
        background: Background = in_thread,
        site: str = "a site file",
    ) -> None:
        self.records, self.files, self.tell, self.limits = records, files, tell, limits
        self.clock = clock or Clock()
        self.jobs: list[MonitoredJob] = []
        self.announcer = Announcer(tell, limits, scheduler.delete_line, site)
        self.listing = Listing(files, limits.poll_s, self.clock)
        self.observer = Observer(scheduler, files, driver_began_ns, limits.poll_s, self.clock, background)
        self.submitter = Submitter(scheduler, records, limits, self.clock)
        self.leftovers = Leftovers(records, files, limits, self.clock, driver_began_ns)
        self.endings = Endings(self.jobs, scheduler, records, files, self.leftovers, self.announcer, self.clock)
        self.stopping = threading.Event()
        self.wake = self.observer.wake
        self._new: queue.SimpleQueue[SnakemakeJob] = queue.SimpleQueue()
        self._found_leftovers = False
        self._full_since_s: float | None = None
        """Since when the scheduler takes no more jobs, although it holds none of ours that could end."""
        self._unwritten_s = (-math.inf, -math.inf)
        """Since when no submission could be written down, and when that was seen last."""

    # called by the executor, from Snakemake's own thread

    def add(self, work: SnakemakeJob) -> None:
        """Follow a job: adopt what a driver before has submitted for it, or submit it."""
        self._new.put(work)
        self.wake.set()

    # one round

    def round(self) -> None:
        """Check every job once."""
        if not self._found_leftovers:
            with contextlib.suppress(OSError):  # tried again in the next round
                self.leftovers.find({job.attempt.name for job in self.jobs if job.record.attempts})
                self._found_leftovers = True
        self._take_new()
        self._take_answers()
        names = self._names()
        for job in list(self.jobs):
            if self.stopping.is_set() or names is None:
                break
            self._handle(job, names)
        if not self.stopping.is_set():
            followed = [JobRef(job.attempt.name, job.attempt.id) for job in self.jobs if job.submitted]
            self.observer.ask([*followed, *self.leftovers.jobs()])

    def pause(self) -> None:
        """Wait until something may have changed."""
        self.wake.wait(self.pause_s())
        self.wake.clear()

    def pause_s(self) -> float:
        """Seconds until something may be due: a submission, or else a look at the status files."""
        waiting = (job for job in self.jobs if job.state.phase is Phase.TO_SUBMIT)
        return min([1.0, self.limits.poll_s, *map(self.submitter.due_in_s, waiting)])

    def _names(self) -> set[str] | None:
        """All status files; None without jobs, or where the folder cannot be read, which proves nothing."""
        if not self.jobs:
            return None
        try:
            names = self.listing.names()
        except OSError as error:
            self.announcer.no_answer(str(error), FILES)
            self.submitter.pause(1.0)
            self._give_up_unwritten(error)
            return None
        self.announcer.answered(FILES)
        return names

    def _take_new(self) -> None:
        while not self._new.empty():
            work = self._new.get()
            state = JobState(Phase.NEW, self.clock.now_s())
            self.jobs.append(MonitoredJob(work, Record(work.key, work.label, outputs=work.outputs), state))

    # answers of the scheduler

    def _take_answers(self) -> None:
        for answer in self.observer.answers():
            if isinstance(answer.statuses, NoAnswer):
                self.announcer.no_answer(str(answer.statuses), QUESTION)
                continue
            unanswered = [status.words for status in answer.statuses.values() if status.state is State.UNANSWERED]
            if unanswered:
                self.announcer.no_answer(unanswered[0], QUESTION)
            else:
                self.announcer.answered(QUESTION)
            for job in self.jobs:
                if job.submitted and job.known_s < answer.asked_s:
                    self._hear(job, answer.statuses.get(job.attempt.name), answer.asked_s)
            with contextlib.suppress(OSError):  # the next answer comes
                self.leftovers.hear(answer.statuses, answer.asked)
            self.announcer.waiting(self.jobs, self.clock.now_s())
            self.announcer.blocked(self.jobs, self.clock.now_s())

    def _hear(self, job: MonitoredJob, status: Status | None, asked_s: float) -> None:
        """Take one job's part of an answer."""
        before, job.state = job.state, heard(job.state, status, asked_s, self.clock.now_s())
        if status is None or status.state is State.UNANSWERED:
            return
        if job.attempt.id is None:
            job.attempt.id, job.unsaved = status.id, True
            self.tell.say(f"{job.work.label}: found as {status.id}")
        known = before.status.state if before.status is not None else None
        if status.state is not known:
            requeued = known in RAN and status.state is State.QUEUED and job.state.phase is Phase.ALIVE
            self.announcer.changed(job, status, known, requeued)

    # decisions

    def _handle(self, job: MonitoredJob, names: set[str]) -> None:
        """Decide about one job and act; an error leaves it as it is, and is told once."""
        try:
            self._save(job)
            evidence = self.observer.evidence(job, names)
            decision = decide(job, evidence, self.clock.now_s(), self.limits)
            self._act(job, decision)
            self.announcer.no_error(job)
        except OSError as error:
            self.announcer.error(job, error)
            if job.state.phase in NOT_SUBMITTED:
                self._give_up_unwritten(error)
        except Exception as error:
            there = f"job {job.id} may still run" if job.record.open else "it was not submitted"
            self.endings.fail(job, f"this executor failed on it, {there}: {type(error).__name__}: {error}.")

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
                self.endings.requeued(job, job.state.end, decision.state)
            case Action.KEEP:
                job.attempt.cancelled = False
                self.records.write(job.record)
                self.tell.say(f"{job.work.label}: job {job.id}: {decision.why}")
                job.state = decision.state
            case action if action in ENDS:
                if self.endings.end(job, decision):
                    self.submitter.room()
            case action:
                if action is Action.ASK:
                    self._ask_about_an_end(job)
                job.state = decision.state

    def _ask_about_an_end(self, job: MonitoredJob) -> None:
        if job.state.phase is Phase.ENDING:
            self.observer.ask_soon()
        else:
            self.observer.ask_now()

    def _read_record(self, job: MonitoredJob) -> None:
        """Adopt what was submitted for a job before, or have it submitted."""
        now_s = self.clock.now_s()
        try:
            record = self.records.read(job.work.key, job.work.label)
        except ValueError as error:
            self.endings.fail(job, f"not submitted: {error}.")
            return
        self.leftovers.take_up(record)
        record.outputs = job.work.outputs
        if not record.open and job.work.outputs:
            # The same group with other members may still run, and would be a second writer.
            before = self.leftovers.making(job.work.outputs)
            self.announcer.held_up(job, before)
            if before or not self._found_leftovers:
                return
        if not record.open:
            for old in record.attempts:
                self.files.forget_end(old.name)
            job.state = JobState(Phase.TO_SUBMIT, now_s)
            return
        job.record, job.adopted, job.known_s = record, True, now_s
        job.asked = _asked(job.work)
        job.state = JobState(Phase.SUBMITTED, now_s)
        but = ", although its deletion was asked for: if it is deleted, it is submitted again"
        self.tell.say(f"{job.work.label}: adopted as {job.id}{but if job.attempt.cancelled else ''}")

    def _submit(self, job: MonitoredJob) -> None:
        try:
            unclear = self.submitter.submit(job)
        except NotSubmitted as error:
            self.endings.fail(job, f"{error}.")
            return
        except LimitReached as error:
            self.announcer.answered(SUBMISSION)
            self._wait_for_room(job, error)
            return
        self._full_since_s = None
        now_s = self.clock.now_s()
        job.adopted, job.known_s, job.state = False, now_s, JobState(Phase.SUBMITTED, now_s)
        if unclear is not None:
            self.announcer.no_answer(str(unclear), SUBMISSION)
            return
        self.announcer.answered(SUBMISSION)
        job.unsaved = True
        number = job.record.number
        attempt = f", attempt {number}" if number > 1 else ""
        self.tell.say(f"{job.work.label}: submitted as {job.attempt.id}{attempt}")
        self._save(job)

    def _wait_for_room(self, job: MonitoredJob, limit: LimitReached) -> None:
        """The scheduler does not take a job for now: not for ever, where no other job of ours has to end first."""
        now_s = self.clock.now_s()
        self.announcer.full(job, limit, sum(other.state.phase is Phase.TO_SUBMIT for other in self.jobs))
        if self._full_since_s is None or any(other.submitted for other in self.jobs):
            self._full_since_s = now_s
        elif now_s - self._full_since_s >= self.limits.blocked_s:
            minutes = f"{self.limits.blocked_s / 60:g} minutes"
            why = f"{limit}, for {minutes}, in which no other job of this driver was in the queue"
            self.endings.fail(job, f"not submitted: {why}.")

    def _give_up_unwritten(self, error: OSError) -> None:
        """The folder of records cannot be read or written: where no job is in the queue that has to be followed, what was
        to be submitted is not waited for long."""
        now_s, limit_s = self.clock.now_s(), self.limits.unwritten_s
        if now_s - self._unwritten_s[1] > limit_s / 2 or any(job.submitted for job in self.jobs):
            self._unwritten_s = (now_s, now_s)
        self._unwritten_s = (self._unwritten_s[0], now_s)
        if now_s - self._unwritten_s[0] >= limit_s:
            for job in [job for job in self.jobs if job.state.phase in NOT_SUBMITTED]:
                why = f"{error}, for {limit_s:g} s. Fix this, then run the same command again"
                self.endings.fail(job, f"not submitted: this driver's records cannot be written: {why}.")

    # cancelling

    def say_cancelling(self) -> None:
        """Before it is done: a submission in progress is waited for, and a scheduler may take its time."""
        count = sum(job.submitted for job in self.jobs)
        jobs = "1 job" if count == 1 else f"{count} jobs"
        doing = f": cancelling {jobs}; this may take a while" if count else ""
        self.tell.warn(f"multinode: stopped by SIGINT (Ctrl-C){doing}. The same command resumes")

    def cancel_all(self) -> None:
        """Ask the scheduler to delete every job that this driver follows, and nothing else."""
        self.endings.delete([job for job in self.jobs if job.submitted], leaving=True)

    def leave(self) -> None:
        """This driver ends: what it has not submitted it will not submit."""
        for job in self.jobs:
            if job.intent is not None and not job.submitted:
                with contextlib.suppress(OSError):  # the next driver finds that line, and ends it
                    self.records.withdraw(job.intent, "not taken by the scheduler before its driver ended")


def _asked(work: SnakemakeJob) -> Asked:
    try:
        request = work.request("probe", Path("/probe"), Path("/probe"))
    except ValueError:
        return Asked(None, None)
    return Asked(request.mem_mb, request.runtime_min)
