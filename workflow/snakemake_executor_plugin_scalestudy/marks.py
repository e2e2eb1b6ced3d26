"""What a job script leaves behind: that it began, how it ended. The first source of truth about a job.

`NAME.token` is a symbolic link to `run` or `void`: whoever makes it first decides whether a submission of unclear fate
may still run. So a submission that comes through late, after it was given up, ends at once. `NAME.began` and
`NAME.ended` hold lines `key=value`; each is synced and renamed into place, so that it is whole or absent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".token", ".began", ".ended")


@dataclass(frozen=True)
class End:
    """How a job script ended: the exit status of its command, the signal that it was sent, Unix seconds, the node."""

    code: int
    signal: str
    began_s: int
    ended_s: int
    host: str


class Marks:
    """The folder of all marks: one listing tells of all jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> set[str]:
        """All marks there are."""
        return {entry.name for entry in os.scandir(self.folder)}

    def end(self, name: str) -> End | None:
        """How that job ended, or None as long as that is not to be seen."""
        fields = self._fields(f"{name}.ended")
        if fields is None:
            return None
        try:
            times = int(fields["began"]), int(fields["ended"])
            return End(int(fields["exit"]), fields.get("signal", ""), *times, fields.get("host", ""))
        except (KeyError, ValueError):
            return None

    def ended_mtime_ns(self, name: str) -> int:
        """When the end was written, by the clock of the file system."""
        return (self.folder / f"{name}.ended").stat().st_mtime_ns

    def began(self, name: str) -> tuple[int, str] | None:
        """When and where that job began: Unix seconds and host."""
        fields = self._fields(f"{name}.began")
        if fields is None or not fields.get("began", "").isdigit():
            return None
        return int(fields["began"]), fields.get("host", "")

    def silent_s(self, name: str) -> float:
        """How long ago that job touched its mark, by the clock of the file system."""
        clock = self.folder / ".clock"
        clock.touch()
        return clock.stat().st_mtime - (self.folder / f"{name}.began").stat().st_mtime

    def void(self, name: str) -> bool:
        """Forbid a submission to run; False if it has begun."""
        token = self.folder / f"{name}.token"
        try:
            token.symlink_to("void")
        except FileExistsError:
            pass
        return str(token.readlink()) == "void"

    def forget(self, name: str) -> None:
        """Remove the marks of a job that is over."""
        for suffix in SUFFIXES:
            (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def forget_end(self, name: str) -> None:
        """Remove all marks but the token: a submission that was given up stays forbidden."""
        for suffix in SUFFIXES[1:]:
            (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def _fields(self, file: str) -> dict[str, str] | None:
        try:
            text = (self.folder / file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
