"""Status files of a job script: its beginning and its end. The first source of truth about a job.

They lie in `.multinode/marks`.
`NAME.token` is a symbolic link to `run` or `void`: whoever makes it first decides whether a submission of unclear fate
may still run. So a submission that comes through late, after it was given up, ends at once. A driver that has judged
the end of a submission makes it `void`, so that a scheduler which starts it a second time starts nothing.

`NAME.began` and `NAME.ended` hold lines `key=value`; each is synced and renamed into place, so that it is whole or
absent. A script that is started a second time removes the end of the first, writes `NAME.began` anew and reads the
token again; a driver makes the token `void` before it looks whether the end is still there. So one sees the other.
`NAME.fault` is where the set-up or the command of a job that runs says that its node is unfit; it becomes part of the end.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".token", ".began", ".ended", ".fault")


@dataclass(frozen=True)
class End:
    """How a job script ended: the exit status of its command, the signal that it was sent, Unix seconds, the node."""

    code: int
    signal: str
    began_s: int
    ended_s: int
    host: str
    fault: str = ""
    """Why the node or the site's set-up was unfit, in the words of the set-up or of the command."""


@dataclass(frozen=True)
class Began:
    """That a job script has begun: Unix seconds, and the node."""

    began_s: int
    host: str


@dataclass(frozen=True)
class RunState:
    """`running` (with what it has saved so far), `checkpointed` (it stopped there on purpose), `failed` or `finished`."""

    state: str = ""
    progress: float | None = None
    cause: str = ""
    fresh: bool = False
    """Written by the attempt that has just ended, not by one before it."""


class StatusFiles:
    """The folder of all status files: one listing tells of all jobs."""

    def __init__(self, folder: Path, driver_began_ns: int = 0) -> None:
        self.folder, self.driver_began_ns = folder, driver_began_ns
        folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> set[str]:
        """The names of all status files."""
        return {path.name for path in self.folder.iterdir()}

    def end(self, name: str) -> End | None:
        """How that job ended, or None as long as that is not to be seen."""
        fields = self._fields(f"{name}.ended")
        with suppress(KeyError, ValueError):
            code, began_s, ended_s = (int(fields[key]) for key in ("exit", "began", "ended"))
            host, fault = fields.get("host", ""), fields.get("fault", "").strip()
            ended_s = max(began_s, ended_s)  # a node's clock may be set back
            return End(code, fields.get("signal", ""), began_s, ended_s, host, fault)
        return None

    def ended_before_driver(self, name: str) -> bool:
        """Whether the end was written before this driver began, so that Snakemake has seen the job's outputs."""
        return (self.folder / f"{name}.ended").stat().st_mtime_ns < self.driver_began_ns

    def began(self, name: str) -> Began | None:
        """When and where that job began, or None as long as that is not to be seen."""
        fields = self._fields(f"{name}.began")
        with suppress(KeyError, ValueError):
            return Began(int(fields["began"]), fields.get("host", ""))
        return None

    def silent_s(self, name: str) -> float:
        """How long ago that job touched its file, by the clock of the file system."""
        return clock_s(self.folder) - (self.folder / f"{name}.began").stat().st_mtime

    def ran_s(self, name: str, end: End | None) -> float | None:
        """Seconds from the start of that job to its end or, without one, to its last heartbeat; None: not begun."""
        if end is not None:
            return float(end.ended_s - end.began_s)
        if (began := self.began(name)) is not None:
            with suppress(FileNotFoundError):
                return max(0.0, (self.folder / f"{name}.began").stat().st_mtime - began.began_s)
        return None

    def void(self, name: str) -> bool:
        """Forbid a submission to run; False if it has begun."""
        token = self.folder / f"{name}.token"
        with suppress(FileExistsError):
            token.symlink_to("void")
        return str(token.readlink()) == "void"

    def revoke(self, name: str) -> None:
        """Forbid a submission to run a second time, although it has begun before."""
        new = self.folder / f".{name}.token.new"
        new.unlink(missing_ok=True)
        new.symlink_to("void")
        new.replace(self.folder / f"{name}.token")

    def forget(self, name: str, keep_token: bool = False) -> None:
        """Remove the status files of a job that is over; with its token a submission that was given up stays forbidden."""
        for suffix in SUFFIXES[1 if keep_token else 0 :]:
            (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def _fields(self, file: str) -> dict[str, str]:
        """The lines of a file; none where it cannot be read."""
        try:
            text = (self.folder / file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return {}
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def read_run_state(file: Path | None, stamp_before: list[int] | None) -> RunState:
    """Read the file; empty where it cannot be read. `stamp_before` is its `file_stamp` before the attempt."""
    stamp = file_stamp(file)
    if file is None or stamp is None:
        return RunState()
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        progress = data.get("progress")
        is_number = isinstance(progress, int | float) and not isinstance(progress, bool)
        saved_progress = float(progress) if is_number else None
        return RunState(str(data.get("state", "")), saved_progress, str(data.get("cause") or ""), stamp != stamp_before)
    except (OSError, ValueError, AttributeError, RecursionError, OverflowError):
        return RunState()


def file_stamp(file: Path | None) -> list[int] | None:
    """Time and size of a file, to tell whether it has changed; None if it is not there."""
    try:
        stat = file.stat() if file is not None else None
    except OSError:
        return None
    return [stat.st_mtime_ns, stat.st_size] if stat is not None else None


def clock_s(folder: Path) -> float:
    """Return the time by the clock of a folder's file system, Unix seconds."""
    file = folder / ".clock"
    file.touch()
    return file.stat().st_mtime
