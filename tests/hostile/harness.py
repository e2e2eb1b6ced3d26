"""A wrong or hostile input at a door of scalestudy, and what is promised about it.

Promised, of each: the command ends with a status other than 0 and with one message, which says what is wrong and where,
in text that a terminal shows as it is; no traceback; nothing on the disk is changed, but for what the door may write.
Commands run in this process, as the console script runs them. Each door has a test with the same input unspoilt, which is
accepted: a refusal is about the fault.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scalestudy import cli
from scalestudy.errors import UNSEEN

LONGEST_MESSAGE = 20_000
MOST_CPU_S = 20.0
"""Of one refusal; most take milliseconds. What loops takes for ever."""
BEFORE = ("traceback", "accepted", "hang", "unclear", "damage")
"""What became of an input before it was mended: an unhandled exception; taken for right; no end; a message that did not say
what was wrong or could act on the terminal; other files changed, or read."""


@dataclass(frozen=True)
class Case:
    """One wrong input."""

    name: str
    make: Callable[[Path], Any]
    """Spoils the project, whose folder it gets and which is the current one."""
    says: str
    """Part of the message."""
    words: tuple[str, ...] = ()
    """Further words of the command line."""
    before: str = ""
    """One of BEFORE, where reading the code had shown that it was not refused, and it was mended; empty: it was refused."""

    def __post_init__(self) -> None:
        assert self.before in ("", *BEFORE)


@dataclass(frozen=True)
class Seen:
    """What a command did."""

    status: int
    said: str
    """Standard error."""
    out: str


def nothing(_project: Path) -> None:
    """The input lies in the words of the command."""


def text(name: str, content: str) -> Callable[[Path], object]:
    """Writes a file of the project."""
    return raw(name, content.encode())


def raw(name: str, content: bytes) -> Callable[[Path], object]:
    """Writes the bytes of a file of the project."""

    def make(project: Path) -> None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).unlink(missing_ok=True)
        (project / name).write_bytes(content)

    return make


def replaced(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Replaces text of a file that is there."""

    def make(project: Path) -> None:
        content = (project / name).read_text()
        assert old in content
        (project / name).write_text(content.replace(old, new, 1))

    return make


def pipe(name: str) -> Callable[[Path], object]:
    """A pipe in the place of a file: who opens it waits for ever."""

    def make(project: Path) -> None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).unlink(missing_ok=True)
        os.mkfifo(project / name)

    return make


def folder(name: str) -> Callable[[Path], object]:
    """A folder in the place of a file."""

    def make(project: Path) -> None:
        (project / name).unlink(missing_ok=True)
        (project / name).mkdir(parents=True)

    return make


def link(name: str, target: str) -> Callable[[Path], object]:
    """A link in the place of a file."""

    def make(project: Path) -> None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).unlink(missing_ok=True)
        (project / name).symlink_to(target)

    return make


def run(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Seen:
    """A command line, as the console script runs it; what it raises is a traceback."""
    capsys.readouterr()
    begin = time.process_time()
    status = cli.run_command(list(words))
    assert time.process_time() - begin < MOST_CPU_S, "it takes too long"
    printed = capsys.readouterr()
    return Seen(status, printed.err, printed.out)


@dataclass(frozen=True)
class Refuse:
    """Spoils a project, gives a command, and holds what it did against the promises."""

    project: Path
    capsys: pytest.CaptureFixture[str]
    record: Callable[[str, object], None]

    def __call__(self, case: Case, command: Sequence[str], may_write: Iterable[str] = ()) -> Seen:
        """`may_write`: what the command makes below the project in any case, such as folders of its output."""
        case.make(self.project)
        before = digest(self.project.parent)
        seen = run([*command, *case.words], self.capsys)
        self.note(case, seen.said)
        assert seen.status != 0
        assert_message(seen.said, case.says)
        allowed = [f"{self.project.name}/{name}" for name in may_write]
        assert changes(before, digest(self.project.parent), allowed) == []
        return seen

    def note(self, case: Case, said: str) -> None:
        """For the page that `python -m tests.hostile` writes."""
        for key, value in (("case", case.name), ("said", said), ("before", case.before)):
            self.record(key, value)


def assert_message(said: str, says: str) -> None:
    """One message of ours that says `says`, and that a terminal shows as it is."""
    assert "Traceback" not in said
    assert sum(line.startswith(("scalestudy: ", "Usage: ", "Error: ")) for line in said.splitlines()) == 1, said
    assert says in said, said
    assert not UNSEEN.search(said), ascii(said)
    assert len(said) < LONGEST_MESSAGE


def digest(place: Path) -> dict[str, str]:
    """What lies below a folder, links not followed: kind, target or content of each, by its path."""
    found = {}
    for path in sorted(place.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            what = f"link {path.readlink()}"
        elif stat.S_ISREG(mode):
            what = f"file {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            what = f"{stat.S_IFMT(mode):o}"
        found[path.relative_to(place).as_posix()] = what
    return found


def changes(before: dict[str, str], after: dict[str, str], may_write: Sequence[str]) -> list[str]:
    """What was made, removed or changed, apart from what lies at or below the paths of `may_write`, or leads to them."""
    allowed = tuple(f"{name}/" for name in may_write)
    return [
        name
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
        and not f"{name}/".startswith(allowed)
        and not any(one.startswith(f"{name}/") for one in allowed)
    ]
