"""Why processes of a run ended, as the machine that started them saw it, and which failure explains the others."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from scalestudy.errors import Skipped, UserError, visible
from scalestudy.files import tail
from scalestudy.training.job import Job

USER_ERROR, LOST_PARTNER, SKIPPED, DONE = 2, 3, 4, 64
"""Exit statuses of a process of a run. One that has done its work does not end with 0: any code that calls `exit` does."""
CAUSES = ("skipped", "user", "killed", "failed", "silent", "node", "partner")
"""Kinds of failure, those that explain the others first."""
SETTLE_S = 0.5
"""Time for other failures after the first: the one that explains them may come from a farther node."""
TAIL_LINES = 30


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
        return "\n".join([self.what, f"    the end of {self.log}:", *(f"    | {line}" for line in self.tail)])


class RankFailed(Exception):
    """A process of the run failed; the message names it, its machine, and its last lines."""


class NodeFailed(RankFailed):
    """A node could not be reached, or was lost: nothing that the run does, so its job is worth another try."""


def failure_with_log(kind: str, what: str, log: Path) -> Failure:
    """Return a failure with the last lines of the failed process's output."""
    lines = tail(log).splitlines()[-TAIL_LINES:]
    return Failure(kind, what, str(log), tuple(map(visible, lines)))


def raise_cause(failures: Sequence[Failure], job: Job) -> NoReturn:
    """End the run's supervision with the failure that explains the others: those that lost their partner fail next."""
    first = min(failures, key=lambda failure: CAUSES.index(failure.kind))
    if first.kind == "skipped":
        raise Skipped(first.what)
    if first.kind == "user":
        raise UserError(first.what, job.run)
    raise (NodeFailed if first.kind == "node" else RankFailed)(str(first))


def ending(code: int) -> str:
    """How a process ended, in words, from multiprocessing's exit code."""
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name}), cause unknown"
    if code == 0:
        return "ended before its work was done (exit status 0): the model, the data or a library called `exit`"
    return "lost the connection to another process" if code == LOST_PARTNER else f"failed (exit status {code})"
