"""Orphans: submissions without a recorded end, and files that a scheduler still needs.

A submission that no driver follows can end in any way: with a record of its own, without one, or before it began. Its
line in the ledger would stay that of its request. The scheduler is asked about such submissions beside the followed
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from snakemake_executor_plugin_multinode.decide import SILENT_S, Limits, apply_status
from snakemake_executor_plugin_multinode.job import JobState, Phase
from snakemake_executor_plugin_multinode.records import Attempt, Record, Records
from snakemake_executor_plugin_multinode.schedulers import JobRef, State, Status
from snakemake_executor_plugin_multinode.status_files import End, StatusFiles
from snakemake_executor_plugin_multinode.verdict import LOST_ANSWERS


@dataclass
class Orphan:
    """A submission of an earlier driver without an end in the ledger."""

    attempt: Attempt
    state: JobState
    outputs: frozenset[str] = frozenset()
    """All that it makes: a group's members were jobs of their own before, or will be."""


class Orphans:
    """Orphaned submissions of earlier drivers, and finished jobs with output still to be copied."""

    def __init__(
        self, records: Records, files: StatusFiles, limits: Limits, now_s: Callable[[], float], driver_began_ns: int
    ) -> None:
        self.records, self.files, self.limits, self.now_s = records, files, limits, now_s
        self.driver_began_ns = driver_began_ns
        self.orphans: dict[str, Orphan] = {}
        self.finished: dict[str, Record] = {}
        """By the name of its last attempt."""

    def find(self, followed: Collection[str]) -> None:
        """Find orphans of earlier drivers; `followed` are the names of this driver's own attempts."""
        records = self.records.all()
        outputs = {record.attempts[-1].name: frozenset(record.outputs) for record in records if record.open}
        for attempt in self.records.not_ended():
            if attempt.name not in followed and not self._note_end(attempt):
                state = JobState(Phase.SUBMITTED, self.now_s())
                self.orphans[attempt.name] = Orphan(attempt, state, outputs.get(attempt.name, frozenset()))
        for record in records:
            name = record.attempts[-1].name
            if record.outcome == "finished" or (record.open and name not in followed and self._succeeded_before(name)):
                self.finished.setdefault(name, record)

    def making(self, outputs: Collection[str]) -> list[Attempt]:
        """Return orphaned submissions that make some of these files."""
        return [orphan.attempt for orphan in self.orphans.values() if orphan.outputs & set(outputs)]

    def keep(self, record: Record) -> None:
        """Keep the files of a job that has succeeded until its scheduler is done with it."""
        self.finished[record.attempts[-1].name] = record

    def forget(self, record: Record) -> None:
        """Remove the files of a job that has succeeded."""
        for attempt in record.attempts:
            self.files.forget(attempt.name)
        self.records.forget(record)

    def jobs(self) -> list[JobRef]:
        """Return the jobs to query."""
        attempts = [orphan.attempt for orphan in self.orphans.values()]
        attempts += [record.attempts[-1] for record in self.finished.values()]
        return [JobRef(attempt.name, attempt.id) for attempt in attempts]

    def apply_statuses(self, statuses: Mapping[str, Status], asked: Collection[str], asked_s: float) -> None:
        """An answer about the jobs `asked`. OSError where something cannot be written; the next answer comes."""
        for name in [name for name in self.orphans if name in asked]:
            orphan = self.orphans[name]
            orphan.state = apply_status(orphan.state, statuses.get(name), asked_s, self.now_s())
            if self._note_end(orphan.attempt) or self._note_loss(orphan):
                del self.orphans[name]
        for name in [name for name in self.finished if name in asked]:
            status = statuses.get(name)
            if status is None or status.state is State.ENDED:
                self.forget(self.finished[name])
                del self.finished[name]

    def take_up(self, record: Record) -> None:
        """A job is followed from now on, and its folder is that of its next attempts."""
        for attempt in record.attempts:
            self.orphans.pop(attempt.name, None)
            self.finished.pop(attempt.name, None)

    def _succeeded_before(self, name: str) -> bool:
        """Whether an attempt has succeeded while no driver ran: this one's Snakemake has seen its outputs, and makes
        them again if it wants them again, whatever lies here."""
        end = self.files.end(name)
        return end is not None and end.code == 0 and self.files.ended_mtime_ns(name) < self.driver_began_ns

    def _note_end(self, attempt: Attempt) -> bool:
        """Write the end that its script recorded into the ledger; False without one."""
        end = self.files.end(attempt.name)
        if end is not None:
            self._note(attempt, f"ended with status {end.code} while no driver ran", end)
        return end is not None

    def _note_loss(self, orphan: Orphan) -> bool:
        """Write an end without a record of its script into the ledger; False where there is none."""
        name, state, cause = orphan.attempt.name, orphan.state, ""
        if state.phase is Phase.ENDING and state.status is not None:
            cause = f"ended while no driver followed it ({state.status.words})"
        missing_s = self.now_s() - state.since_s if state.phase is Phase.MISSING else 0.0
        if state.answers >= LOST_ANSWERS and missing_s >= self.limits.lost_s:
            if self.files.began(name) is None and self.files.void(name):
                cause = "never began, and the scheduler does not know it"
            elif self.files.began(name) is not None and self.files.silent_s(name) > SILENT_S:
                cause = "left no exit status, and the scheduler has no record of it"
        if cause:
            self._note(orphan.attempt, cause, None)
        return bool(cause)

    def _note(self, attempt: Attempt, cause: str, end: End | None) -> None:
        attempt.cause = cause
        note_end(self.records, self.files, attempt, end)


def note_end(records: Records, files: StatusFiles, attempt: Attempt, end: End | None) -> None:
    """Write the end of an attempt into the ledger, with the seconds that it held its nodes."""
    records.note_end(attempt, attempt.used_before_s + (files.ran_s(attempt.name, end) or 0.0))
