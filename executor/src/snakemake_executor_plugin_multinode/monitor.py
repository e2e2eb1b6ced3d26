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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from snakemake_executor_plugin_multinode.decide import Limits, apply_status, begun_again, decide
from snakemake_executor_plugin_multinode.job import Action, Decision, JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.observe import SOON_S, Evidence, Observer
from snakemake_executor_plugin_multinode.orphans import Orphans
from snakemake_executor_plugin_multinode.records import Record, Records
from snakemake_executor_plugin_multinode.schedulers import (
    JobRef,
    LimitReached,
    NoAnswer,
    Refused,
    Scheduler,
    State,
    Status,
)
from snakemake_executor_plugin_multinode.status_files import End
from snakemake_executor_plugin_multinode.submit import Submitter

RAN = (State.RUNNING, State.SUSPENDED, State.ENDED)
REPORTED = (State.HELD, State.SUSPENDED, State.UNKNOWN)
"""States that a job enters and leaves with a message."""
MAX_REASONS = 3
"""Of a failed deletion, in one message."""


class JobMonitor:
    """Follow all jobs of one driver. `tell` is its executor, which is told of changes, waits, successes and failures.

    `site` is the file in which the site says how jobs are submitted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        records: Records,
        tell: Any,
        limits: Limits,
        site: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler, self.records, self.files = scheduler, records, records.files
        self.tell, self.limits, self.site, self.now_s = tell, limits, site, now_s
        self.jobs: list[MonitoredJob] = []
        self.observer = Observer(scheduler, self.files, limits.poll_s, now_s)
        self.submitter = Submitter(scheduler, records, limits, now_s)
        self.orphans = Orphans(records, limits, now_s)
        self.stopping = threading.Event()
        self.wake = self.observer.wake
        self._new: queue.SimpleQueue[MonitoredJob] = queue.SimpleQueue()
        self._warned: set[Hashable] = set()
        """Topics of warnings that still hold."""

    # called by the executor, from Snakemake's own thread

    def add(self, job: MonitoredJob) -> None:
        """Follow a job: adopt an earlier driver's submission, or submit it."""
        self._new.put(job)
        self.wake.set()

    # one round

    def round(self) -> None:
        """Check every job once."""
        while not self._new.empty():
            self.jobs.append(self._new.get())
        self._take_answer()
        names = self._names()
        for job in list(self.jobs):
            if self.stopping.is_set() or names is None:
                break
            self._handle(job, names)
        if not self.stopping.is_set():
            if names is not None:
                with contextlib.suppress(OSError):  # the next round comes
                    self.orphans.round(names)
            jobs = [*self.submitted(), *self.orphans.jobs.values()]
            self.observer.ask([JobRef(job.attempt.name, job.attempt.id) for job in jobs])

    def pause(self) -> None:
        """Wait until something may have changed or is due: a submission, or else a look at the status files."""
        waiting = (job for job in self.jobs if job.state.phase is Phase.TO_SUBMIT)
        self.wake.wait(min([1.0, self.limits.poll_s, *map(self.submitter.due_in_s, waiting)]))
        self.wake.clear()

    def _names(self) -> set[str] | None:
        """All status files; None without jobs, or where the folder cannot be read, which proves nothing."""
        try:
            names = self.observer.names() if self.jobs or self.orphans.jobs else None
        except OSError as error:
            self._warn_once("files", f"the status files cannot be read, which changes nothing for the jobs: {error}")
            self.submitter.pause(1.0)
            return None
        self._is_over("files", "the status files can be read again")
        return names

    def _warn_once(self, topic: Hashable, text: str) -> None:
        """Warn about a topic, once until it is over."""
        if topic not in self._warned:
            self._warned.add(topic)
            self.tell.warn(text)

    def _is_over(self, topic: Hashable, text: str = "") -> None:
        """End a topic, and tell that it has ended, if there was a warning about it."""
        if topic in self._warned and text:
            self.tell.warn(text)
        self._warned.discard(topic)

    # answers of the scheduler

    def _no_answer(self, topic: str, words: str) -> None:
        self._warn_once(topic, f"no answer from the scheduler, which changes nothing for the jobs: {words}")

    def _take_answer(self) -> None:
        answer = self.observer.answer()
        if answer is None:
            return
        if isinstance(answer.statuses, NoAnswer):
            self._no_answer("query", str(answer.statuses))
            return
        unanswered = [status.words for status in answer.statuses.values() if status.state is State.UNANSWERED]
        if unanswered:
            self._no_answer("query", unanswered[0])
        else:
            self._is_over("query", "the scheduler answers again")
        for job in self.submitted():
            if job.state.since_s < answer.asked_s:  # an earlier answer says nothing about this state
                self._apply_status(job, answer.statuses.get(job.attempt.name), answer.asked_s)
        self.orphans.apply_statuses(answer.statuses, answer.asked_s)

    def _apply_status(self, job: MonitoredJob, status: Status | None, asked_s: float) -> None:
        """Take one job's part of an answer."""
        before, job.state = job.state, apply_status(job.state, status, asked_s, self.now_s())
        if status is None or status.state is State.UNANSWERED:
            return
        if job.attempt.id is None:
            job.attempt.id, job.unsaved = status.id, True
            self.tell.say(f"{job.label}: found as {status.id}")
        words = "" if before.status is None else before.status.words
        if status.state is not State.UNKNOWN and (status.state, status.words) != (before.reported, words):
            self.tell.waits(job, "" if status.state in RAN else f"{status.state.value}: {status.words}")
        elif status.state is State.NEVER:  # in two answers: the first reason of a new job may be another
            self._warn_of_never(job, status)
        if status.state is not before.reported:
            self._tell_change(job, status, before)

    def _warn_of_never(self, job: MonitoredJob, status: Status) -> None:
        """A job cannot run as things are: once for each reason and rule."""
        text = (
            f"{job.label}: job {job.id} cannot run as things are, says the scheduler: {status.words}. Once it can, it runs. "
            f"If it never will, correct what it asks for (the resources of rule {job.rule}, or `scheduler` in {self.site}), "
            "and delete it. The same is not said of others of this rule"
        )
        self._warn_once(("never", job.rule, status.words), text)

    def _tell_change(self, job: MonitoredJob, status: Status, before: JobState) -> None:
        """The scheduler reports a job in another state than before."""
        which = f"{job.label}: job {status.id}"
        if status.state is State.QUEUED and before.reported in RAN and job.state.phase is Phase.ALIVE:
            self.tell.warn(f"{which} was requeued; it runs again")
        elif status.state is not State.ENDED and (status.state in REPORTED or before.reported in REPORTED):
            self.tell.warn(f"{which} is {status.state.value} ({status.words})")

    # decisions

    def _handle(self, job: MonitoredJob, names: set[str]) -> None:
        """Decide about one job and act; an error leaves it as it is, and is told once."""
        try:
            self._save(job)
            if job.state.phase is Phase.NEW:
                self._adopt(job)
            elif job.submitted:
                self._act(job, decide(job, Evidence(job, self.files, names), self.now_s(), self.limits))
            elif self.submitter.due_in_s(job) > 0.0:
                return
            else:
                self._submit(job)
            self._is_over(("error", job.key))
        except OSError as error:
            self._warn_once(("error", job.key), f"{job.label}: {error}; trying again")
        except Exception as error:
            outcome = f"job {job.id} may still run" if job.record.open else "it was not submitted"
            self._fail(job, f"this executor failed on it, {outcome}: {type(error).__name__}: {error}.")

    def _save(self, job: MonitoredJob) -> None:
        if job.unsaved:
            self.records.write(job.record)
            self.records.note_submission(job.record)
            job.unsaved = False

    def _act(self, job: MonitoredJob, decision: Decision) -> None:
        match decision.action:
            case Action.FORBID:
                forbidden, history = self.files.void(job.attempt.name), self.scheduler.keeps_history
                job.state = replace(decision.state, forbidden=forbidden, history=history)
            case Action.REQUEUED:
                self._requeued(job, job.state.end, decision.state)
            case Action.WAIT:
                if decision.state.phase is Phase.ENDING:
                    self.observer.ask_within(SOON_S if job.state.phase is Phase.ENDING else 0.0)
                job.state = decision.state
            case _:
                self._end(job, decision)

    def _adopt(self, job: MonitoredJob) -> None:
        """Adopt an earlier submission of a job, or have it submitted."""
        try:
            writers = self.orphans.adopt(job)
        except ValueError as error:
            self._fail(job, f"not submitted: {error}.")
            return
        if writers:
            ids = ", ".join(attempt.id or attempt.name for attempt in writers)
            text = f"{job.label}: waits for job {ids} of an earlier driver, which makes some of its files"
            self._warn_once(("held up", job.key), text)
        if job.adopted:
            but = ", although its deletion was asked for: if it is deleted, it is submitted again"
            self.tell.say(f"{job.label}: adopted as {job.id}{but if job.attempt.cancelled else ''}")

    def _submit(self, job: MonitoredJob) -> None:
        try:
            self.submitter.submit(job)
        except ValueError as error:
            self._fail(job, f"not submitted: {error}.")
            return
        except Refused as error:
            job.attempt.cause, job.attempt.never_ran = f"the scheduler refused it: {error}", True
            with contextlib.suppress(OSError):
                self.records.note_end(job.record, None)
            self._fail(job, f"{job.attempt.cause}.")
            return
        except LimitReached as error:
            self._is_over("submission")
            waiting = "it waits with all that ask for as much until others end; where none is left there, ask for less"
            self._warn_once("full", f"{job.label}: the scheduler takes no more jobs for now ({error}); {waiting}")
            return
        except NoAnswer as error:
            self._no_answer("submission", str(error))
        job.adopted, job.state = False, JobState(Phase.SUBMITTED, self.now_s())
        if job.attempt.id is None:
            return
        self._is_over("submission")
        job.unsaved = True
        self.tell.say(f"{job.label}: submitted as {job.attempt.id}")
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
        over = decision.action in (Action.SUCCEED, Action.FAIL)
        self.records.write(replace(job.record, over=over))
        self.records.note_end(job.record, end)
        job.record.over = over
        self.submitter.room()
        if decision.action is Action.SUCCEED:
            self._succeed(job)
        elif decision.action is Action.FAIL:
            log = self.records.folder_of(job.key) / f"{attempt.name}.log"
            place = f" The job's own output: {log}." if log.exists() else ""
            self._fail(job, f"job {job.id}: {decision.why}.{place}")
        else:
            self.tell.warn(f"{job.label}: job {job.id}: {decision.why}; it {decision.action.value}")
            if decision.action is Action.START_OVER:
                job.record = Record(job.key, job.label, outputs=job.outputs)
            job.state = JobState(Phase.TO_SUBMIT, self.now_s())

    def _fail(self, job: MonitoredJob, why: str) -> None:
        """Report a failure, also of a job that was never submitted."""
        self.jobs.remove(job)
        if not job.submitted and job.record.attempts:  # a chain that cannot be continued is no living job
            job.record.over = True
            with contextlib.suppress(OSError):
                self.records.write(job.record)
        self.tell.failed(job, why)

    def _requeued(self, job: MonitoredJob, end: End | None, state: JobState) -> None:
        """The scheduler runs the job a second time: its use is kept, its end is not judged."""
        before_s = job.attempt.used_before_s
        if end is not None:
            job.attempt.used_before_s += end.ended_s - end.began_s
        try:
            self.records.write(job.record)
            if end is not None and not begun_again(end, self.files.began(job.attempt.name)):
                self.files.forget(job.attempt.name, keep_token=True)
        except OSError:
            job.attempt.used_before_s = before_s
            raise
        job.state = state
        self.tell.warn(f"{job.label}: job {job.id} was requeued; it runs again")

    def _delete(self, doomed: Sequence[MonitoredJob], then: str) -> None:
        """Have the scheduler delete the last attempt of each of these jobs; `then` is the remedy where it does not."""
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
        left = self.scheduler.cancel(jobs) if jobs else {}
        if left:
            reasons = "; ".join(list(dict.fromkeys(left.values()))[:MAX_REASONS])
            ids = " ".join(job.id or job.name for job in jobs if job.name in left)
            which = f"the scheduler did not delete {counted(len(left))} ({reasons}); these may still exist: {ids}"
            self.tell.warn(f"{which}. {then}")

    def _at_rest(self, job: MonitoredJob, decision: Decision) -> bool:
        """Forbid a judged job to run again; False if it has begun again in this moment."""
        end = decision.state.end
        self.files.revoke(job.attempt.name)
        begun = end is not None and begun_again(end, self.files.began(job.attempt.name))
        if begun or decision.delete:
            self._delete([job], "Delete them by hand")
        if begun:
            self._requeued(job, end, JobState(Phase.SUBMITTED, self.now_s()))
        return not begun

    def _succeed(self, job: MonitoredJob) -> None:
        self.jobs.remove(job)
        self.tell.succeeded(job)
        if self.scheduler.copies_output and job.state.reported is not State.ENDED:
            self.orphans.jobs[job.key] = job
            return
        with contextlib.suppress(OSError):  # a file that remains must not hold up a success
            self.records.forget(job.record)

    # cancelling

    def submitted(self) -> list[MonitoredJob]:
        """Return the jobs that the scheduler has."""
        return [job for job in self.jobs if job.submitted]

    def cancel_all(self) -> None:
        """Ask the scheduler to delete every job that this driver follows, and nothing else."""
        self._delete(self.submitted(), "The same command adopts what still runs")


def counted(count: int) -> str:
    """Return `1 job`, `3 jobs`."""
    return "1 job" if count == 1 else f"{count} jobs"
