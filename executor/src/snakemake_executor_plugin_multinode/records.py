"""Records of submissions by this driver and earlier ones: on disk before the submission itself.

`.multinode/jobs/<job>/attempts.json` has the attempts of one job; `.multinode/jobs.jsonl`, the ledger, has a line for each
job that the scheduler has taken, and for each end, for accounts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_multinode.status_files import End, StatusFiles


@dataclass
class Attempt:
    """One submission: a job in the scheduler's sense."""

    name: str
    id: str | None
    gpu_hours: float | None
    gpus: int = 0
    state_before: list[int] | None = None
    """Time and size of the job's state file before this attempt: one that has not changed is not this attempt's."""
    cancelled: bool = False
    """A driver asked for its deletion, which may have had no effect: the scheduler was away."""
    used_before_s: float = 0.0
    """Seconds that it ran before its scheduler put it back into the queue."""
    cause: str = ""
    """Why it ended, once that is known."""
    progress: float | None = None
    node_fault: bool = False
    never_ran: bool = False
    """It did not begin, and is forbidden to: the scheduler did not take it, or lost it in its queue."""
    host: str = ""


@dataclass
class Record:
    """One job in Snakemake's sense: its attempts, one after the other, of which the last may be alive."""

    key: str
    label: str
    attempts: list[Attempt] = field(default_factory=list)
    over: bool = False
    """Whether its success or failure is decided."""
    outputs: tuple[str, ...] = ()
    """Files that it makes. The members of a group, and so these, depend on the files that are there already."""

    @property
    def open(self) -> bool:
        """Whether a submission of this job may still be somewhere."""
        return bool(self.attempts) and not self.over and not self.attempts[-1].never_ran


def write_synced(path: Path, text: str) -> None:
    """Write a file that survives a crash, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    with suppress(OSError):  # some network file systems refuse to sync a folder
        os.fsync(descriptor)
    os.close(descriptor)


def job_key(rule: str, outputs: Iterable[str], spec: str) -> str:
    """The identity of a job over restarts of the driver: a readable part and a digest."""
    digest = hashlib.sha256("\0".join([rule, spec, *sorted(outputs)]).encode()).hexdigest()[:16]
    return f"{_slug(rule, 40)}-{digest}"


def job_name(rule: str, wildcards: Iterable[str]) -> str:
    """A name that all schedulers take, unique to one submission."""
    return f"{_slug('.'.join([rule, *wildcards]), 60)}.{uuid.uuid4().hex[:12]}"


def _slug(text: str, length: int) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", text)[:length].strip("._-")
    return plain if plain[:1].isalpha() else f"job{plain}"


class Records:
    """The folder `.multinode` of a working directory; `driver_began_ns` is by the clock of its file system."""

    def __init__(self, folder: Path, driver_began_ns: int = 0) -> None:
        self.folder, self.files = folder, StatusFiles(folder / "marks", driver_began_ns)
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        self.ledger = folder / "jobs.jsonl"
        events = self.events()
        self.ended = {event["name"] for event in events if event["event"] == "ended"}
        """Names of jobs of which the ledger has the end."""
        self.hours: dict[str, float] = {event["name"]: event.get("gpu_hours") or 0.0 for event in events}
        """By the name of each submission, the GPU hours that it used or, before its end, may use."""
        for attempt in (record.attempts[-1] for record in self.all() if record.open):
            self.hours.setdefault(attempt.name, attempt.gpu_hours or 0.0)  # a driver was killed before it noted the id

    def folder_of(self, key: str) -> Path:
        """Where the scripts and logs of a job lie."""
        return self.folder / "jobs" / key

    def read(self, key: str, label: str) -> Record:
        """The record of a job; an empty one where there is none. ValueError, with a sentence, if it is damaged."""
        file = self.folder_of(key) / "attempts.json"
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            attempts = [Attempt(**attempt) for attempt in data["attempts"]]
            return Record(key, data["label"], attempts, data["over"], tuple(data["outputs"]))
        except FileNotFoundError:
            return Record(key, label)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"{file} is damaged, so whether {label} is queued is unknown; "
                "cancel that job if it is, then delete the file"
            ) from None

    def all(self) -> list[Record]:
        """Read the records of all submitted jobs with files still there; damaged ones are left out."""
        records = []
        for file in (self.folder / "jobs").glob("*/attempts.json"):
            with suppress(ValueError):
                records.append(self.read(file.parent.name, ""))
        return [record for record in records if record.attempts]

    def write(self, record: Record) -> None:
        """Store a record, synced."""
        folder = self.folder_of(record.key)
        folder.mkdir(exist_ok=True)  # not the folders above it: a project that was moved is not begun anew
        write_synced(folder / "attempts.json", json.dumps(asdict(record), indent=1) + "\n")

    def forget(self, record: Record) -> None:
        """Remove the files that only a living or failed job needs; its lines in the ledger stay."""
        for attempt in record.attempts:
            self.files.forget(attempt.name)
        folder = self.folder_of(record.key)
        for file in folder.glob("*"):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # a network file system may keep an open file's name
            folder.rmdir()

    # accounts

    def note_submission(self, record: Record) -> None:
        """Write a line once the scheduler's id of the last attempt is known."""
        attempt = record.attempts[-1]
        self._note("submitted", record, gpus=attempt.gpus, gpu_hours=attempt.gpu_hours)

    def note_end(self, record: Record, end: End | None) -> None:
        """Write a line once the last attempt is over: the seconds that it held its nodes take the place of its request."""
        attempt = record.attempts[-1]
        used_s = attempt.used_before_s + (self.files.ran_s(attempt.name, end) or 0.0)
        hours = used_s * attempt.gpus / 3600
        used = {"used_s": round(used_s), "gpu_hours": round(hours, 4)}
        self._note("ended", record, **used, cause=attempt.cause, progress=attempt.progress)
        self.hours[attempt.name] = hours

    def gpu_hours(self) -> float:
        """Sum the GPU hours of finished jobs and the reservations of living ones."""
        return sum(self.hours.values())

    def events(self) -> list[dict[str, Any]]:
        """All lines of the ledger; one that a crash cut off is left out."""
        try:
            text = self.ledger.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        events = []
        for line in text.split("\n"):
            with suppress(ValueError):
                events.append(json.loads(line))
        return events

    def _note(self, event: str, record: Record, **more: Any) -> None:
        attempt = record.attempts[-1]
        identity = {"event": event, "name": attempt.name, "job": record.label, "id": attempt.id}
        line = json.dumps({"time_s": round(time.time(), 3), **identity, **more}) + "\n"
        with open(self.ledger, "a+b") as stream:
            if stream.seek(0, os.SEEK_END):
                stream.seek(-1, os.SEEK_END)
                line = line if stream.read() == b"\n" else f"\n{line}"  # after one that a full disk cut off
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())
