"""Orphans: submissions of earlier drivers. Each is adopted by its job or, without one, watched until it has ended.

A submission that no driver follows can end in any way: with a record of its own, without one, or before it began. Its
line in the ledger would stay that of its request. The scheduler is asked about such submissions beside the followed
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from snakemake_executor_plugin_multinode.decide import Limits, apply_status, decide
from snakemake_executor_plugin_multinode.job import Action, JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.observe import Evidence
from snakemake_executor_plugin_multinode.records import Attempt, Records
from snakemake_executor_plugin_multinode.schedulers import State, Status


class Orphans:
    """All orphans of a folder, by the key of their job, and jobs that have succeeded, with output still to be copied."""

    def __init__(self, records: Records, limits: Limits, now_s: Callable[[], float]) -> None:
        self.records, self.files, self.limits, self.now_s = records, records.files, limits, now_s
        self.jobs: dict[str, MonitoredJob] = {}
        for record in records.all():
            if record.open:
                job = MonitoredJob(None, record.key, record.label, "", (), None, lambda _: None)
                job.record, job.adopted, job.state = record, True, JobState(Phase.SUBMITTED, now_s())
                self.jobs[record.key] = job

    def adopt(self, job: MonitoredJob) -> list[Attempt]:
        """Let a job take over its earlier submission, or be submitted.

        Returns the orphans that make some of its files, for whose end it has to wait: a job of another name, or a group with
        other members, would be a second writer. ValueError, with a sentence, where its record is damaged.
        """
        record = self.records.read(job.key, job.label)
        self.jobs.pop(job.key, None)
        if record.open:
            record.outputs = job.outputs
            job.record, job.adopted, job.state = record, True, JobState(Phase.SUBMITTED, self.now_s())
            return []
        orphans = [orphan for orphan in self.jobs.values() if orphan.record.open]
        writers = [orphan.attempt for orphan in orphans if set(orphan.record.outputs) & set(job.outputs)]
        if not writers:
            for old in record.attempts:
                self.files.forget(old.name, keep_token=True)
            job.state = JobState(Phase.TO_SUBMIT, self.now_s())
        return writers

    def apply_statuses(self, statuses: Mapping[str, Status], asked_s: float) -> None:
        """Take an answer of the scheduler."""
        for job in self.jobs.values():
            if job.state.since_s < asked_s:
                job.state = apply_status(job.state, statuses.get(job.attempt.name), asked_s, self.now_s())

    def round(self, names: set[str]) -> None:
        """Check every orphan once; `names` are the status files. OSError where something cannot be written."""
        for job in list(self.jobs.values()):
            if not job.record.over:
                self._check(job, names)
            elif job.state.phase is Phase.MISSING or job.state.reported is State.ENDED:
                self.records.forget(job.record)
                del self.jobs[job.key]

    def _check(self, job: MonitoredJob, names: set[str]) -> None:
        """Write the end of an orphan into the ledger, if it has ended."""
        evidence = Evidence(job, self.files, names)
        decision = decide(job, evidence, self.now_s(), self.limits)
        if decision.action in (Action.WAIT, Action.REQUEUED):
            job.state = decision.state
            return
        if decision.action is Action.FORBID:
            job.state = replace(decision.state, forbidden=self.files.void(job.attempt.name))
            return
        job.attempt.cause = decision.why
        if job.attempt.name not in self.records.ended:
            self.records.note_end(job.record, decision.state.end)
        # Snakemake has seen the outputs of an earlier success, and makes them again if it wants them again.
        job.record.over = evidence.end is not None and evidence.end.code == 0 and evidence.ended_before_driver
        if not job.record.over:
            del self.jobs[job.key]
