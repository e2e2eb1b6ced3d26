"""Orphans: submissions of earlier drivers. Each is adopted by its job or, without one, watched until it has ended.

A submission that no driver follows can end in any way: with a record of its own, without one, or before it began. Its
line in the ledger would stay that of its request. The scheduler is asked about such submissions beside the followed
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from snakemake_executor_plugin_multinode.decide import SILENT_S, Limits, apply_status, is_lost
from snakemake_executor_plugin_multinode.job import JobState, MonitoredJob, Phase
from snakemake_executor_plugin_multinode.records import Attempt, Record, Records
from snakemake_executor_plugin_multinode.schedulers import JobRef, State, Status


@dataclass
class Orphan:
    """A job that this driver does not follow: its end is to come or, once it has succeeded, that of copying its output."""

    record: Record
    state: JobState

    @property
    def attempt(self) -> Attempt:
        """Its last submission."""
        return self.record.attempts[-1]


class Orphans:
    """All orphans of a folder, by the key of their job."""

    def __init__(self, records: Records, limits: Limits, now_s: Callable[[], float]) -> None:
        self.records, self.files, self.limits, self.now_s = records, records.files, limits, now_s
        self.orphans: dict[str, Orphan] = {}
        for record in records.all():
            if record.open:
                self.keep(record)

    def adopt(self, job: MonitoredJob) -> list[Attempt]:
        """Let a job take over its earlier submission, or be submitted.

        Returns the orphans that make some of its files, for whose end it has to wait: a job of another name, or a group with
        other members, would be a second writer. ValueError, with a sentence, where its record is damaged.
        """
        record, now_s = self.records.read(job.key, job.label), self.now_s()
        self.orphans.pop(job.key, None)
        if record.open:
            record.outputs = job.outputs
            job.record, job.adopted, job.known_s = record, True, now_s
            job.state = JobState(Phase.SUBMITTED, now_s)
            return []
        others = [orphan for orphan in self.orphans.values() if orphan.record.open]
        writers = [orphan.attempt for orphan in others if set(orphan.record.outputs) & set(job.outputs)]
        if not writers:
            for old in record.attempts:
                self.files.forget(old.name, keep_token=True)
            job.state = JobState(Phase.TO_SUBMIT, now_s)
        return writers

    def keep(self, record: Record) -> None:
        """Watch a job until its scheduler is done with it."""
        self.orphans[record.key] = Orphan(record, JobState(Phase.SUBMITTED, self.now_s()))

    def forget(self, record: Record) -> None:
        """Remove the files of a job that has succeeded."""
        for attempt in record.attempts:
            self.files.forget(attempt.name)
        self.records.forget(record)

    def jobs(self) -> list[JobRef]:
        """Return the jobs to query."""
        return [JobRef(orphan.attempt.name, orphan.attempt.id) for orphan in self.orphans.values()]

    def apply_statuses(self, statuses: Mapping[str, Status], asked_s: float) -> None:
        """Take an answer about all orphans of that moment. OSError where something cannot be written; the next answer comes."""
        for key, orphan in list(self.orphans.items()):
            if orphan.state.since_s > asked_s:
                continue
            status = statuses.get(orphan.attempt.name)
            orphan.state = apply_status(orphan.state, status, asked_s, self.now_s())
            if not orphan.record.over and not self._note_end(orphan):
                continue
            if orphan.record.over:
                if status is not None and status.state is not State.ENDED:
                    continue
                self.forget(orphan.record)
            del self.orphans[key]

    def _note_end(self, orphan: Orphan) -> bool:
        """Write the end of an orphan into the ledger; False as long as there is none."""
        name = orphan.attempt.name
        end = self.files.end(name)
        orphan.attempt.cause = (
            self._loss(orphan) if end is None else f"ended with status {end.code} while no driver ran"
        )
        if orphan.attempt.cause:
            self.records.note_end(orphan.record, end)
        if end is not None and end.code == 0:
            # Snakemake has seen the outputs of an earlier end, and makes them again if it wants them again.
            orphan.record.over = self.files.ended_before_driver(name)
        return bool(orphan.attempt.cause)

    def _loss(self, orphan: Orphan) -> str:
        """Return the cause of an end without a record of its script, empty where there is none."""
        name, state = orphan.attempt.name, orphan.state
        if state.phase is Phase.ENDING and state.status is not None:
            return f"ended while no driver followed it ({state.status.words})"
        if not is_lost(state, self.now_s(), self.limits):
            return ""
        if self.files.began(name) is None:
            return "never began, and the scheduler does not know it" if self.files.void(name) else ""
        is_silent = self.files.silent_s(name) > SILENT_S
        return "left no exit status, and the scheduler has no record of it" if is_silent else ""
