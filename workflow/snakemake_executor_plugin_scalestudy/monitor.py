"""Brings all jobs of a driver to their ends: one thread that looks, decides and acts, in rounds.

A job is in one place, `JobMonitor.jobs`, from the moment it is taken in until its success or failure is reported. Each
round handles each job for itself: what was to be written for an action is written before the job's state changes, so an
error of the file system leaves the job as it was, to be handled again in the next round.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from snakemake_executor_plugin_scalestudy.clock import Clock
from snakemake_executor_plugin_scalestudy.decide import ENDS, Action, Decision, Limits, begun_again, decide, heard
from snakemake_executor_plugin_scalestudy.job import Asked, JobState, MonitoredJob, Phase, SnakemakeJob
from snakemake_executor_plugin_scalestudy.observe import Background, Observer, in_thread
from snakemake_executor_plugin_scalestudy.records import Attempt, Record, Records
from snakemake_executor_plugin_scalestudy.schedulers import Job, LimitReached, NoAnswer, Scheduler, State, Status
from snakemake_executor_plugin_scalestudy.status_files import End, StatusFiles
from snakemake_executor_plugin_scalestudy.submit import NotSubmitted, Submitter

LISTING_S = 0.5
RAN = (State.RUNNING, State.SUSPENDED, State.ENDED)


class Reporter(Protocol):
    """What the monitor tells; the executor passes it on to Snakemake."""

    def say(self, text: str) -> None:
        """Something a person may want to know."""

    def warn(self, text: str) -> None:
        """Something a person should know."""

    def succeeded(self, job: MonitoredJob) -> None:
        """A job is done."""

    def failed(self, job: MonitoredJob, why: str) -> None:
        """A job has failed, for the reason given."""


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
    ) -> None:
        self.scheduler, self.records, self.files, self.tell, self.limits = scheduler, records, files, tell, limits
        self.clock = clock or Clock()
        self.observer = Observer(scheduler, files, driver_began_ns, limits.poll_s, self.clock, background)
        self.submitter = Submitter(scheduler, records, limits, self.clock)
        self.jobs: list[MonitoredJob] = []
        self.stopping = threading.Event()
        self.wake = self.observer.wake
        self._new: queue.SimpleQueue[SnakemakeJob] = queue.SimpleQueue()
        self._accounted = False
        self._listed: set[str] | None = None
        self._listed_s = 0.0
        self._trouble = ""
        self._full_since_s: float | None = None
        """Since when the scheduler takes no more jobs, though none of ours is there that could end."""
        self._full_was_said = False
        self._troubles: dict[int, str] = {}
        """By job, the error that was told last: it is told once."""

    # called by the executor, from Snakemake's own thread

    def add(self, work: SnakemakeJob) -> None:
        """Follow a job: adopt what a driver before has submitted for it, or submit it."""
        self._new.put(work)
        self.wake.set()

    # one round

    def round(self) -> None:
        """Look once at everything."""
        self._account_for_the_past()
        self._take_new()
        self._take_answers()
        names = self._names()
        for job in list(self.jobs):
            if self.stopping.is_set() or names is None:
                break
            self._handle(job, names)
        if not self.stopping.is_set():
            self.observer.ask([job for job in self.jobs if job.submitted])

    def pause(self) -> None:
        """Until there may be something to see."""
        self.wake.wait(self.pause_s())
        self.wake.clear()

    def pause_s(self) -> float:
        """Seconds until something may be due: a submission, or else a look at the status files."""
        idle_s = min(1.0, self.limits.poll_s)
        if not any(job.state.phase is Phase.TO_SUBMIT for job in self.jobs):
            return idle_s
        return min(idle_s, max(0.0, self.submitter.due_s - self.clock.now_s()))

    def _names(self) -> set[str] | None:
        """All status files; listed twice a second at most, however fast submissions follow one another."""
        if not self.jobs:
            return None
        if self._listed is not None and self.clock.now_s() - self._listed_s < LISTING_S:
            return self._listed
        try:
            self._listed, self._listed_s = self.files.names(), self.clock.now_s()
            return self._listed
        except OSError as error:  # a hiccup of the file system proves nothing
            self._in_trouble(f"{self.files.folder}: {error}")
            self.submitter.pause(1.0)
            return None

    def _account_for_the_past(self) -> None:
        """What jobs used that ended while no driver ran, in the ledger: Snakemake may never ask for them again."""
        if self._accounted:
            return
        with contextlib.suppress(OSError):  # tried again in the next round
            for attempt in self.records.not_ended():
                end = self.files.end(attempt.name)
                if end is not None:
                    attempt.cause = f"ended with status {end.code} while no driver ran"
                    self.records.note_end(attempt, used_s(attempt, end, self.files))
            self._accounted = True

    def _take_new(self) -> None:
        while not self._new.empty():
            work = self._new.get()
            state = JobState(Phase.NEW, self.clock.now_s())
            self.jobs.append(MonitoredJob(work, Record(work.key, work.label), state))

    # answers of the scheduler

    def _take_answers(self) -> None:
        for answer in self.observer.answers():
            if isinstance(answer.statuses, NoAnswer):
                self._in_trouble(str(answer.statuses))
                continue
            unanswered = [status.words for status in answer.statuses.values() if status.state is State.UNANSWERED]
            if unanswered:
                self._in_trouble(unanswered[0])
            elif self._trouble:
                self.tell.warn("the scheduler answers again")
                self._trouble = ""
            for job in self.jobs:
                if job.submitted and job.known_s < answer.asked_s:
                    self._hear(job, answer.statuses.get(job.attempt.name), answer.asked_s)

    def _in_trouble(self, words: str) -> None:
        """Say once that there is no answer."""
        if words != self._trouble:
            self.tell.warn(f"no answer from the scheduler, which changes nothing for the jobs: {words}")
        self._trouble = words

    def _hear(self, job: MonitoredJob, status: Status | None, asked_s: float) -> None:
        """Take one job's part of an answer."""
        before, job.state = job.state, heard(job.state, status, asked_s, self.clock.now_s())
        if status is None or status.state is State.UNANSWERED:
            return
        if job.attempt.id is None:
            job.attempt.id, job.unsaved = status.id, True
            self.tell.say(f"{job.work.label}: found as {status.id}")
        if before.status is None or status.state is not before.status.state:
            self._say_change(job, status, before.status.state if before.status is not None else None)

    def _say_change(self, job: MonitoredJob, status: Status, before: State | None) -> None:
        which = f"{job.work.label}: job {status.id}"
        if status.state in (State.HELD, State.SUSPENDED):
            self.tell.warn(f"{which} is {status.state.value} ({status.words}); it continues when it is released")
        elif status.state is State.NEVER:
            patience = f"{self.limits.blocked_s / 60:g} minutes"
            self.tell.warn(f"{which} cannot run as things are ({status.words}); if that lasts {patience} it is deleted")
        elif status.state is State.UNKNOWN:
            self.tell.warn(f"{which} is in a state that is not known here, {status.words!r}; waiting")
        elif before in RAN and status.state is State.QUEUED and job.state.phase is Phase.ALIVE:
            self._say_requeued(job)
        elif before in (State.HELD, State.SUSPENDED, State.NEVER) and status.state is not State.ENDED:
            self.tell.warn(f"{which} is {status.state.value} again")

    # decisions

    def _handle(self, job: MonitoredJob, names: set[str]) -> None:
        """Decide about one job and act; an error leaves it as it is, and is told once."""
        try:
            self._save(job)
            evidence = self.observer.evidence(job, names)
            decision = decide(job, evidence, self.clock.now_s(), self.limits)
            self._act(job, decision)
            self._troubles.pop(id(job), None)
        except OSError as error:
            if self._troubles.get(id(job)) != str(error):
                self.tell.warn(f"{job.work.label}: {error}; trying again")
            self._troubles[id(job)] = str(error)
        except Exception as error:
            there = f"job {job.id} may still run" if job.record.open else "it was not submitted"
            self._report_failure(job, f"this executor failed on it, {there}: {type(error).__name__}: {error}.")

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
                if self.submitter.due():
                    self._submit(job)
            case Action.FORBID:
                job.state = replace(decision.state, forbidden=self.files.void(job.attempt.name))
            case Action.REQUEUED:
                self._requeued(job, job.state.end, decision.state)
            case Action.KEEP:
                job.attempt.cancelled = False
                self.records.write(job.record)
                self.tell.say(f"{job.work.label}: job {job.id}: {decision.why}")
                job.state = decision.state
            case action if action in ENDS:
                self._end_attempt(job, decision)
            case action:
                if action is Action.ASK:
                    self._ask_about_an_end(job, decision.state)
                job.state = decision.state

    def _ask_about_an_end(self, job: MonitoredJob, state: JobState) -> None:
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
            self._report_failure(job, f"not submitted: {error}.")
            return
        if not record.open:
            for old in record.attempts:
                self.files.forget_end(old.name)
            job.state = JobState(Phase.TO_SUBMIT, now_s)
            return
        job.record, job.adopted, job.known_s = record, True, now_s
        job.asked = _asked(job.work)
        job.state = JobState(Phase.SUBMITTED, now_s)
        but = ", although its deletion was asked for: if that comes true it is submitted anew"
        self.tell.say(f"{job.work.label}: taken up again as {job.id}{but if job.attempt.cancelled else ''}")

    def _submit(self, job: MonitoredJob) -> None:
        try:
            unclear = self.submitter.submit(job)
        except NotSubmitted as error:
            self._report_failure(job, f"{error}.")
            return
        except LimitReached as error:
            self._wait_for_room(job, str(error))
            return
        self._full_since_s = None
        now_s = self.clock.now_s()
        job.adopted, job.known_s, job.state = False, now_s, JobState(Phase.SUBMITTED, now_s)
        if unclear is not None:
            self._in_trouble(str(unclear))
            return
        job.unsaved = True
        number = job.record.number
        attempt = f", attempt {number}" if number > 1 else ""
        self.tell.say(f"{job.work.label}: submitted as {job.attempt.id}{attempt}")
        self._save(job)

    def _wait_for_room(self, job: MonitoredJob, words: str) -> None:
        """The scheduler takes no more jobs for now: not for ever, where no other job of ours has to end first."""
        now_s = self.clock.now_s()
        if not self._full_was_said:
            self._full_was_said = True
            waiting = sum(other.state.phase is Phase.TO_SUBMIT for other in self.jobs)
            jobs = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
            self.tell.warn(f"the scheduler takes no more jobs for now ({words}); {jobs} until others end")
        if self._full_since_s is None or any(other.submitted for other in self.jobs):
            self._full_since_s = now_s
        elif now_s - self._full_since_s >= self.limits.blocked_s:
            minutes = f"{self.limits.blocked_s / 60:g} minutes"
            why = f"{words}, for {minutes}, in which no other job of this driver was in the queue"
            self._report_failure(job, f"not submitted: {why}.")

    def _requeued(self, job: MonitoredJob, end: End | None, state: JobState) -> None:
        """Its scheduler runs it a second time: what it used is kept, its end is not judged."""
        before = job.attempt.used_before_s
        if end is not None:
            job.attempt.used_before_s += end.ended_s - end.began_s
        try:
            self.records.write(job.record)
            if end is not None and not begun_again(end, self.files.began(job.attempt.name)):
                self.files.forget_end(job.attempt.name)
        except OSError:
            job.attempt.used_before_s = before
            raise
        job.state = state
        self._say_requeued(job)

    def _say_requeued(self, job: MonitoredJob) -> None:
        self.tell.warn(f"{job.work.label}: job {job.id} was requeued; it runs again")

    # ends

    def _end_attempt(self, job: MonitoredJob, decision: Decision) -> None:
        """Write down how an attempt ended, then do what follows from it."""
        attempt = job.attempt
        if decision.action is not Action.SUCCEED and not self._at_rest(job, decision):
            return
        attempt.cause, attempt.node_fault = decision.why, decision.node_fault
        attempt.progress, attempt.host = decision.progress, decision.host
        attempt.never_ran = decision.action is Action.RESUBMIT
        outcome = {Action.SUCCEED: "finished", Action.FAIL: "failed"}.get(decision.action, "")
        end = decision.state.end
        self.records.write(Record(job.record.key, job.record.label, job.record.attempts, outcome))
        self.records.note_end(attempt, used_s(attempt, end, self.files))
        job.record.outcome = outcome
        self.submitter.room()
        match decision.action:
            case Action.SUCCEED:
                self._report_success(job)
            case Action.FAIL:
                which = f"job {job.id}: {decision.why}"
                self._report_failure(job, f"{which}.{self._place(job)}")
            case _:
                self._again(job, decision)

    def _at_rest(self, job: MonitoredJob, decision: Decision) -> bool:
        """Forbid a job whose end is judged to run again; False if it has begun again in this moment."""
        end = decision.state.end
        self.files.revoke(job.attempt.name)
        if end is not None and begun_again(end, self.files.began(job.attempt.name)):
            self._cancel([job])
            self._requeued(job, end, JobState(Phase.SUBMITTED, self.clock.now_s()))
            return False
        if decision.delete:
            self._cancel([job])
        return True

    def _again(self, job: MonitoredJob, decision: Decision) -> None:
        """Have another attempt submitted."""
        which = f"{job.work.label}: job {job.id}"
        if decision.action is Action.CONTINUE:
            self._keep_logs(job)
            self.tell.warn(f"{which}: {decision.why}; it continues in a new job")
        elif decision.action is Action.RESUBMIT:
            self.tell.say(f"{which} {decision.why}; it is submitted now")
        else:
            self.tell.say(f"{which}: {decision.why}; it is made again")
            job.record = Record(job.work.key, job.work.label)
        job.state = JobState(Phase.TO_SUBMIT, self.clock.now_s())

    def _report_success(self, job: MonitoredJob) -> None:
        self.jobs.remove(job)
        self.tell.succeeded(job)
        with contextlib.suppress(OSError):  # a file that stays is no reason to hold a success up
            for attempt in job.record.attempts:
                self.files.forget(attempt.name)
            self.records.forget(job.record)

    def _report_failure(self, job: MonitoredJob, why: str) -> None:
        self.jobs.remove(job)
        if not job.submitted and job.record.attempts:  # a chain that cannot be continued is no living job
            job.record.outcome = "failed"
            with contextlib.suppress(OSError):
                self.records.write(job.record)
        self.tell.failed(job, why)

    def _keep_logs(self, job: MonitoredJob) -> None:
        """The next attempt writes the rule's log anew: keep this one's."""
        folder = self.records.folder_of(job.work.key)
        for log in job.work.logs:
            with contextlib.suppress(OSError):
                shutil.copyfile(log, folder / f"attempt{job.record.number}.{log.name}")

    def _place(self, job: MonitoredJob) -> str:
        log = self.records.folder_of(job.work.key) / f"{job.attempt.name}.log"
        return f" The job's own output: {log}." if log.exists() else ""

    # cancelling

    def say_cancelling(self) -> None:
        """Before it is done: a submission under way is waited for, and a scheduler may take its time."""
        count = sum(job.submitted for job in self.jobs)
        if count:
            self.tell.warn(f"cancelling {count} {'job' if count == 1 else 'jobs'}; this may take a while")

    def cancel_all(self) -> None:
        """Ask the scheduler to delete every job that this driver follows, and nothing else."""
        self._cancel([job for job in self.jobs if job.submitted])

    def _cancel(self, cancelled: list[MonitoredJob]) -> None:
        jobs = []
        for job in cancelled:
            job.attempt.cancelled = True
            try:
                self.records.write(job.record)
            except OSError as error:  # to a full disk too, the deletion is what was asked for
                self.tell.warn(f"{job.work.label}: {error}")
            # A scheduler that has forgotten a job may have given its id to another.
            missing = job.state.phase is Phase.MISSING
            jobs.append(Job(job.attempt.name, None if missing else job.attempt.id))
        if not jobs:
            return
        try:
            self.scheduler.cancel(jobs)
        except NoAnswer as error:
            ids = " ".join(job.id or job.name for job in jobs)
            self.tell.warn(
                f"the scheduler could not be asked to delete its jobs ({error}); still there may be: {ids}. "
                "The same command takes up what still runs"
            )


def used_s(attempt: Attempt, end: End | None, files: StatusFiles) -> float:
    """Seconds that an attempt held its nodes: until its end, or, where it left none, until its last sign of life."""
    if end is not None:
        return attempt.used_before_s + end.ended_s - end.began_s
    began, beat_s = files.began(attempt.name), files.last_beat_s(attempt.name)
    if began is None or beat_s is None:
        return attempt.used_before_s
    return attempt.used_before_s + max(0.0, beat_s - began.began_s)


def _asked(work: SnakemakeJob) -> Asked:
    try:
        request = work.request("probe", Path("/probe"), Path("/probe"))
    except ValueError:
        return Asked(None, None)
    return Asked(request.mem_mb, request.runtime_min)
