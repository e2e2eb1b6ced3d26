"""Orphans: submissions without a recorded end, and files that a scheduler still needs.

A submission that no driver follows can end in any way: with a word of its own, without one, or before it began. Its line
in the ledger would stay that of its request. The scheduler is asked about such submissions beside the followed
ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from snakemake_executor_plugin_multinode.clock import Clock
from snakemake_executor_plugin_multinode.decide import LOST_ANSWERS, SILENT_S, Limits
from snakemake_executor_plugin_multinode.records import Attempt, Record, Records
from snakemake_executor_plugin_multinode.schedulers import JobRef, State, Status
from snakemake_executor_plugin_multinode.status_files import End, StatusFiles


@dataclass
class Orphan:
    """A submission of an earlier driver without an end in the ledger."""

    attempt: Attempt
    answers: int = 0
    """How many answers in a row do not have it."""
    missing_since_s: float = 0.0
    ran_s: float = 0.0
    """How long it ran, once it has ended."""


class Orphans:
    """Orphaned submissions of earlier drivers, and finished jobs with output still to be copied."""

    def __init__(
        self, records: Records, files: StatusFiles, limits: Limits, clock: Clock, driver_began_ns: int
    ) -> None:
        self.records, self.files, self.limits, self.clock = records, files, limits, clock
        self.driver_began_ns = driver_began_ns
        self.orphans: dict[str, Orphan] = {}
        self.ended_well: dict[str, Orphan] = {}
        """By name, those that succeeded since this driver began: its Snakemake has not seen their outputs."""
        self.outputs: dict[str, set[str]] = {}
        """By the name of their last attempt, what groups of earlier drivers make."""
        self.finished: dict[str, Record] = {}
        """By the name of its last attempt."""

    def find(self, followed: Collection[str]) -> None:
        """Find orphans of earlier drivers; `followed` are the names of this driver's own attempts."""
        left = self.files.submissions()  # before the records: none that is written meanwhile is missed
        for attempt in self.records.not_ended():
            if attempt.name not in followed and not self._ended(attempt):
                self.orphans[attempt.name] = Orphan(attempt)
        records = self.records.all()
        for record in records:
            name = record.attempts[-1].name
            if record.open and record.outputs:
                self.outputs[name] = set(record.outputs)
            if record.outcome == "finished" or (record.open and name not in followed and self._succeeded_before(name)):
                self.finished.setdefault(name, record)
        needed = {attempt.name for record in records for attempt in record.attempts}
        self._clear(left - needed - {*followed, *self.orphans} - self.records.scripts())

    def _clear(self, names: Iterable[str]) -> None:
        """Remove the status files of submissions that are in no record. None of them can begin: without its script, which
        is gone too, a job ends at once."""
        for name in names:
            self.files.forget(name)

    def making(self, outputs: Collection[str]) -> list[Attempt]:
        """Return orphaned submissions of groups that make some of these files."""
        known = self.orphans.items() if self.outputs and outputs else ()
        return [orphan.attempt for name, orphan in known if self.outputs.get(name, set()) & set(outputs)]

    def made(self, outputs: Collection[str]) -> Orphan | None:
        """Take the orphan that has made all of these files since this driver began; None without one."""
        names = [name for name in self.ended_well if set(outputs) <= self.outputs.get(name, set())]
        return self.ended_well.pop(names[0]) if names else None

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
        orphans = [orphan.attempt for orphan in self.orphans.values()]
        finished = [record.attempts[-1] for record in self.finished.values()]
        return [JobRef(attempt.name, attempt.id) for attempt in [*orphans, *finished]]

    def apply_statuses(self, statuses: Mapping[str, Status], asked: Collection[str]) -> None:
        """An answer about the jobs `asked`. OSError where something cannot be written; the next answer comes."""
        for name in [name for name in self.orphans if name in asked]:
            self._apply_status(self.orphans[name], statuses.get(name))
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

    def _apply_status(self, orphan: Orphan, status: Status | None) -> None:
        attempt = orphan.attempt
        if self._ended(attempt):
            return
        if status is None:
            self._missing(orphan)
        elif status.state is State.ENDED:
            self._note(attempt, f"ended while no driver followed it ({status.words})", None)
        elif status.state is not State.UNANSWERED:
            orphan.answers = 0

    def _missing(self, orphan: Orphan) -> None:
        attempt, now_s = orphan.attempt, self.clock.now_s()
        if orphan.answers == 0:
            orphan.missing_since_s = now_s
        orphan.answers += 1
        if orphan.answers < LOST_ANSWERS or now_s - orphan.missing_since_s < self.limits.lost_s:
            return
        if self.files.began(attempt.name) is None and not self.files.void(attempt.name):
            return  # it is starting at this moment
        if self.files.began(attempt.name) is None:
            self._note(attempt, "never began, and the scheduler does not know it", None)
        elif self.files.silent_s(attempt.name) > SILENT_S:
            self._note(attempt, "left no exit status, and the scheduler has no record of it", None)

    def _ended(self, attempt: Attempt) -> bool:
        end = self.files.end(attempt.name)
        if end is not None:
            self._note(attempt, f"ended with status {end.code} while no driver ran", end)
        return end is not None

    def _note(self, attempt: Attempt, cause: str, end: End | None) -> None:
        attempt.cause = cause
        used, began = used_s(attempt, end, self.files), began_s(attempt, end, self.files)
        if end is not None and end.code == 0 and self.files.ended_mtime_ns(attempt.name) >= self.driver_began_ns:
            self.ended_well[attempt.name] = Orphan(attempt, ran_s=used)
        self.records.note_end(attempt, used, unseen=True, began_s=began)
        self.orphans.pop(attempt.name, None)


def used_s(attempt: Attempt, end: End | None, files: StatusFiles) -> float:
    """Seconds that an attempt held its nodes: until its end, else until its last heartbeat."""
    if end is not None:
        return attempt.used_before_s + end.ended_s - end.began_s
    began, beat_s = files.began(attempt.name), files.last_beat_s(attempt.name)
    if began is None or beat_s is None:
        return attempt.used_before_s
    return attempt.used_before_s + max(0.0, beat_s - began.began_s)


def began_s(attempt: Attempt, end: End | None, files: StatusFiles) -> float | None:
    """When the script of an attempt began, Unix seconds; None where it did not, or began a second time: its wait is then
    not known."""
    began = end or files.began(attempt.name)
    return None if began is None or attempt.used_before_s else float(began.began_s)
