"""The end of an attempt: recorded, then reported to Snakemake or followed by another attempt; and deletion."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import replace

from snakemake_executor_plugin_multinode.announce import Announcer
from snakemake_executor_plugin_multinode.clock import Clock
from snakemake_executor_plugin_multinode.decide import Action, Decision, begun_again
from snakemake_executor_plugin_multinode.job import JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.leftovers import Leftovers, began_s, used_s
from snakemake_executor_plugin_multinode.records import Record, Records
from snakemake_executor_plugin_multinode.schedulers import JobRef, Scheduler, State
from snakemake_executor_plugin_multinode.status_files import End, StatusFiles


class Endings:
    """Ends attempts. A job that has reached its own end leaves `jobs`, the monitor's list."""

    def __init__(
        self,
        jobs: list[MonitoredJob],
        scheduler: Scheduler,
        records: Records,
        files: StatusFiles,
        leftovers: Leftovers,
        announcer: Announcer,
        clock: Clock,
    ) -> None:
        self.jobs, self.scheduler, self.records, self.files = jobs, scheduler, records, files
        self.leftovers, self.announcer, self.tell, self.clock = leftovers, announcer, announcer.tell, clock
        self.undeleted: dict[str, JobRef] = {}
        """By name, the jobs that the scheduler did not delete when it was asked: the next deletion asks for them again."""

    def end(self, job: MonitoredJob, decision: Decision) -> bool:
        """Record how an attempt ended, then do what follows; False if the job has just begun a second time."""
        attempt = job.attempt
        if decision.action is not Action.SUCCEED and not self._at_rest(job, decision):
            return False
        attempt.cause, attempt.node_fault = decision.why, decision.node_fault
        attempt.progress, attempt.host = decision.progress, decision.host
        attempt.never_ran = decision.action is Action.RESUBMIT
        outcome = {Action.SUCCEED: "finished", Action.FAIL: "failed"}.get(decision.action, "")
        self.records.write(replace(job.record, outcome=outcome))
        ran_s = used_s(attempt, decision.state.end, self.files)
        self.records.note_end(attempt, ran_s, began_s=began_s(attempt, decision.state.end, self.files))
        job.ran_s += ran_s
        job.record.outcome = outcome
        match decision.action:
            case Action.SUCCEED:
                self._succeed(job)
            case Action.FAIL:
                self.fail(job, f"job {job.id}: {decision.why}.{self._place(job)}")
            case _:
                self._again(job, decision)
        return True

    def fail(self, job: MonitoredJob, why: str) -> None:
        """Report a failure, also of a job that was never submitted."""
        self.jobs.remove(job)
        if not job.submitted and job.intent is not None:
            with contextlib.suppress(OSError):
                self.records.withdraw(job.intent, why)
        if not job.submitted and job.record.attempts:  # a chain that cannot be continued is no living job
            job.record.outcome = "failed"
            with contextlib.suppress(OSError):
                self.records.write(job.record)
        self.tell.failed(job, why)

    def requeued(self, job: MonitoredJob, end: End | None, state: JobState) -> None:
        """The scheduler runs the job a second time: what it used is kept, its end is not judged."""
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
        self.announcer.requeued(job)

    def delete(self, doomed: Sequence[MonitoredJob], leaving: bool = False) -> None:
        """Have the scheduler delete the last attempt of each of these jobs; `leaving`: because the driver ends."""
        jobs = []
        for job in doomed:
            job.attempt.cancelled = True
            try:
                self.records.write(job.record)
            except OSError as error:  # with a full disk too, the deletion is what was requested
                self.tell.warn(f"{job.work.label}: {error}")
            # A scheduler that has forgotten a job may have given its id to another.
            missing = job.state.phase is Phase.MISSING
            jobs.append(JobRef(job.attempt.name, None if missing else job.attempt.id))
        asked = {job.name: job for job in [*self.undeleted.values(), *jobs]}
        if not asked:
            return
        left = self.scheduler.cancel(list(asked.values()))
        self.undeleted = {name: asked[name] for name in left}
        if left:
            self.announcer.not_deleted(list(left.values()), list(self.undeleted.values()), leaving)

    def _at_rest(self, job: MonitoredJob, decision: Decision) -> bool:
        """Forbid a job whose end is judged to run again; False if it has begun again in this moment."""
        end = decision.state.end
        self.files.revoke(job.attempt.name)
        if end is not None and begun_again(end, self.files.began(job.attempt.name)):
            self.delete([job])
            self.requeued(job, end, JobState(Phase.SUBMITTED, self.clock.now_s()))
            return False
        if decision.delete:
            self.delete([job])
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
            job.record = Record(job.work.key, job.work.label, outputs=job.work.outputs)
        job.state = JobState(Phase.TO_SUBMIT, self.clock.now_s())

    def _succeed(self, job: MonitoredJob) -> None:
        self.jobs.remove(job)
        self.tell.succeeded(job)
        status = job.state.status
        if self.scheduler.copies_output and (status is None or status.state is not State.ENDED):
            self.leftovers.keep(job.record)
            return
        with contextlib.suppress(OSError):  # a file that remains must not hold up a success
            self.leftovers.forget(job.record)

    def _keep_logs(self, job: MonitoredJob) -> None:
        """Keep this attempt's logs: the next attempt overwrites those of the rule."""
        folder = self.records.folder_of(job.work.key)
        for log in job.work.logs:
            with contextlib.suppress(OSError):
                shutil.copyfile(log, folder / f"attempt{job.record.number}.{log.name}")

    def _place(self, job: MonitoredJob) -> str:
        log = self.records.folder_of(job.work.key) / f"{job.attempt.name}.log"
        return f" The job's own output: {log}." if log.exists() else ""
