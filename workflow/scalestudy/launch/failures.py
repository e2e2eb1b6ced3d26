"""Why processes of a run ended, as the machine that started them saw it, and which failure explains the others."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from scalestudy.errors import Skipped, UserError
from scalestudy.training.job import Job

USER_ERROR, LOST_PARTNER, SKIPPED = 2, 3, 4
"""Exit statuses of a process of a run."""
CAUSES = ("skipped", "user", "killed", "failed", "silent", "node", "partner")
"""Kinds of failure, those that explain the others first."""
SETTLE_S = 0.5
"""After the first failure others are heard for so long: the one that explains them may come from a farther node."""
TAIL_LINES = 20
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Failure:
    """Why a process ended."""

    kind: str
    """One of CAUSES."""
    what: str
    """A sentence without its full stop: who, what, where."""
    log: str = ""
    """File of its output."""
    tail: tuple[str, ...] = ()
    """The last lines of that."""

    def __str__(self) -> str:
        if not self.tail:
            return self.what
        count = "last line" if len(self.tail) == 1 else f"last {len(self.tail)} lines"
        return "\n".join([self.what, f"    {count} of {self.log}:", *(f"    | {line}" for line in self.tail)])


class RankFailed(Exception):
    """A process of the run failed; the message names it, its machine, and its last lines."""


def failure_with_log(kind: str, what: str, log: Path) -> Failure:
    """A failure with the last lines of the output of what failed."""
    return Failure(kind, what, str(log), tuple(last_lines(log)))


def cause(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others: those that only lost their partner fail next."""
    return min(failures, key=lambda failure: CAUSES.index(failure.kind))


def raise_cause(failures: Sequence[Failure], job: Job) -> NoReturn:
    """End the run's supervision with what explains its failure."""
    first = cause(failures)
    if first.kind == "skipped":
        raise Skipped(first.what)
    if first.kind == "user":
        raise UserError(first.what, job.run)
    raise RankFailed(str(first))


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """The last lines of a file, without reading all of it; none where there is no file."""
    try:
        with open(log, "rb") as stream:
            stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def ending(code: int) -> str:
    """How a process ended, in words, from multiprocessing's exit code."""
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name}), cause unknown"
    if code == LOST_PARTNER:
        return "lost the connection to another process"
    return f"failed (exit status {code})"
