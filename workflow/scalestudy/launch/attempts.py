"""The attempts at one run, each of which resumes where the one before ended: by walltime, by request, or by a failure."""

from __future__ import annotations

import datetime
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.launch.signals import EndedBySignal
from scalestudy.measure.instrument import code_digest
from scalestudy.spec.layout import CHECKPOINTS, PROGRAM_STATE, STATE_FILE, STOP_FILE
from scalestudy.training.control_files import write_state

RECORD = "links.json"
OURS = re.compile(r"step-[0-9]{9}|\.step-[0-9]{9}\.partial|damaged-step-[0-9]{9}|" + PROGRAM_STATE)
"""Names of the folders that training/checkpoint.py makes, and of that with a program's state."""
KILLED = "ended without a message; its time is that to its last checkpoint"


class Stopped(Exception):
    """A run that stopped on purpose: after which step, and why."""

    def __init__(self, step: int, cause: str) -> None:
        super().__init__(f"stopped after step {step}, {cause}; the same command resumes it")
        self.step, self.cause = step, cause


@dataclass
class RunStart:
    """One start of a run's processes."""

    started: str
    job: str | None
    """Id of the scheduler's job."""
    from_step: int
    ended: str | None = None
    hours: float | None = None
    steps: int | None = None
    cause: str | None = None
    """Why it ended; None: it has not, or it was killed."""
    begun_s: float = field(default_factory=time.monotonic, repr=False)
    """When this process began it, by a clock that is never set back; of no meaning for attempts that were read."""

    def end(self, step: int, cause: str) -> None:
        """It ends now; `step` is how far the run has come."""
        self.ended, self.cause = now(), cause
        self.hours = round((time.monotonic() - self.begun_s) / 3600, 6)
        self.steps = step - self.from_step

    def entry(self, *more: str) -> dict[str, Any]:
        """As `links` of result.json lists it; with more of its fields."""
        return {name: getattr(self, name) for name in ("started", "ended", "job", "hours", "steps", "cause", *more)}


@dataclass
class Chain:
    """All attempts at one run, from its first start to its result, and the checkpoint of the next one."""

    run: str
    folder: Path
    """The folder of the result."""
    resume: Path | None = None
    """The run's own checkpoint."""
    done: int = 0
    """Steps of a complete run."""
    attempts: list[RunStart] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints and the record of attempts lie."""
        return self.folder / CHECKPOINTS

    def add_to(self, result: dict[str, Any]) -> None:
        """Add the attempts of a finished run, and warnings about them; it took the time of all that made steps."""
        self.done = result.get("steps_done", 0)
        self.attempts[-1].end(self.done, "the run is complete")
        earlier = [attempt for attempt in self.attempts[:-1] if attempt.steps]
        if earlier and result["metrics"].get("wall_s") is not None:
            result["started"] = earlier[0].started
            result["metrics"]["wall_s"] += sum(3600 * (attempt.hours or 0.0) for attempt in earlier)
        result["links"] = [attempt.entry() for attempt in self.attempts]
        result["warnings"] = [*self.warnings, *result.get("warnings", [])]

    def save(self) -> None:
        """Write the record, so that an attempt that is killed is known to have been made."""
        attempts = [attempt.entry("from_step") for attempt in self.attempts]
        write_json(self.checkpoints / RECORD, {"links": attempts, "warnings": self.warnings})

    def clear(self) -> None:
        """Remove all checkpoints, the record, and marks of injected faults; foreign files stay."""
        for path in self.checkpoints.glob("*"):
            if OURS.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        for file in [self.checkpoints / RECORD, *self.checkpoints.glob("fired-*")]:
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self.checkpoints.rmdir()


@contextmanager
def attempt(run: str, out: Path) -> Iterator[Chain]:
    """One attempt at a run: finds its checkpoint, and records its end.

    Checkpoints next to a finished result mean nothing: the run starts from the beginning. Raises UserError where the
    checkpoints are those of another run.
    """
    chain = Chain(run, out.parent)
    if out.exists():
        chain.clear()
    for name in (STATE_FILE, STOP_FILE):
        (out.parent / name).unlink(missing_ok=True)
    _begin(chain)
    try:
        yield chain
    except Exception as error:
        _note_end(chain, error)
        raise
    try:
        write_state(out.parent, "finished", chain.done, "the result is written")
    except OSError as error:  # the result counts, whatever becomes of a note about it
        print(f"scalestudy: warning: {run}: state.json is not up to date: {error}", file=sys.stderr, flush=True)
    chain.clear()


def _begin(chain: Chain) -> None:
    """Read the record of earlier attempts, find the checkpoint of this one, and note its start."""
    begun = 0
    if (chain.checkpoints / RECORD).exists():
        record = read_json(chain.checkpoints / RECORD)
        chain.attempts = [RunStart(**link) for link in record["links"]]
        chain.warnings = record["warnings"]
    if any(chain.checkpoints.glob("*step-*")):
        begun = _find_checkpoint(chain)
    for killed in (earlier for earlier in chain.attempts if earlier.cause is None):
        # The run's last checkpoint is the last that is known of it.
        killed.cause, killed.steps = KILLED, max(0, begun - killed.from_step)
        if chain.resume is not None and killed.steps:
            began = datetime.datetime.fromisoformat(killed.started).timestamp()
            killed.hours = round(max(0.0, chain.resume.stat().st_mtime - began) / 3600, 6)
    chain.attempts.append(RunStart(now(), JobEnvironment().job_id, begun))
    chain.save()
    if chain.resume is not None:
        write_state(chain.folder, "running", begun, f"it resumes after step {begun}")


def _find_checkpoint(chain: Chain) -> int:
    """Find the newest whole checkpoint of the run; its steps. Warns of changes since."""
    from scalestudy.training import checkpoint

    checkpoint.clear_partial(chain.checkpoints)
    chain.resume, warnings = checkpoint.newest_whole(chain.checkpoints)
    chain.warnings += warnings
    for warning in warnings:
        print(f"scalestudy: {chain.run}: {warning}", file=sys.stderr, flush=True)
    if chain.resume is None:
        return 0
    facts = checkpoint.read_facts(chain.resume)
    step: int = facts["step"]
    if facts["run"] != chain.run:
        what = f"holds checkpoints of another run, {facts['run']}"
        raise UserError(what, str(chain.checkpoints), "delete that folder, or write the result elsewhere")
    if facts["code"] != code_digest():
        chain.warnings.append(f"the measuring code changed while the run was stopped after step {step}")
    return step


def _note_end(chain: Chain, error: Exception) -> None:
    """Record why an attempt ended without a result."""
    if isinstance(error, Stopped):
        chain.attempts[-1].end(error.step, error.cause)
        chain.save()
        write_state(chain.folder, "checkpointed", error.step, error.cause)
        (chain.folder / STOP_FILE).unlink(missing_ok=True)
        return
    names = [path.name for path in chain.checkpoints.glob("step-*") if OURS.fullmatch(path.name)]
    cause, progress = str(error).partition("\n")[0], int(max(names).removeprefix("step-")) if names else 0
    chain.attempts[-1].end(progress, cause)
    if isinstance(error, UserError) and not progress and not (chain.checkpoints / PROGRAM_STATE).exists():
        chain.clear()  # it never began
    else:
        chain.save()
    if not isinstance(error, EndedBySignal):
        write_state(chain.folder, "failed", progress, cause)


def now() -> str:
    """The time of day in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
