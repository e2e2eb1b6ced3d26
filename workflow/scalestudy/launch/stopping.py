"""Stop on purpose and go on: what the process that starts a run does about it. The ranks' side is in agreement.py."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from scalestudy import driver
from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json
from scalestudy.measure.instrument import code_digest
from scalestudy.spec.layout import CHECKPOINTS, STATE_FILE, STOP_FILE
from scalestudy.training.notices import AGREED, DRIVER_IS_GONE, REQUEST, STOPPED, write_state

EXIT_STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: the same command goes on."""
AGREE_S = 30.0
"""So long may ranks take from a signal to their agreement to stop."""
LOOK_S = 1.0
"""How often the process that started the ranks looks for its driver, and at the clock."""
SAME_SIGNAL_S = 1.0
"""Signals within this time are one: schedulers send them to the job and to each of its processes."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
LINKS = "links.json"
JOB_IDS = ("PBS_JOBID", "SLURM_JOB_ID", "JOB_ID", "LSB_JOBID")
DEADLINE = "SCALESTUDY_DEADLINE"


class Stopped(Exception):
    """A run that stopped on purpose: after which step, and why."""

    def __init__(self, step: int, cause: str) -> None:
        super().__init__(f"stopped after step {step}, {cause}; the same command goes on from there")
        self.step, self.cause = step, cause


class EndedBySignal(Exception):
    """A run that was told to end at once."""


# Signals


@contextlib.contextmanager
def signals(folder: Path) -> Iterator[None]:
    """SIGTERM, SIGUSR1, SIGUSR2 and the death of the run's driver ask the ranks to stop; SIGINT and SIGHUP end the run.

    So does a second signal, or AGREE_S without agreement of the ranks. `folder` is the job's scratch, where rank 0
    looks. Raises EndedBySignal in the main thread.
    """
    first: list[float] = []
    its_driver = driver.known()

    def end(number: int, _frame: FrameType | None) -> None:
        raise EndedBySignal(f"the run was stopped by {signal.Signals(number).name}")

    def ask(number: int, _frame: FrameType | None) -> None:
        if first and time.monotonic() - first[0] >= SAME_SIGNAL_S:
            raise EndedBySignal(f"the run was ended by a second signal, {signal.Signals(number).name}")
        if not first:
            request(signal.Signals(number).name)

    def request(why: str) -> None:
        first.append(time.monotonic())
        (folder / REQUEST).write_text(why, encoding="utf-8")

    def look(_number: int, _frame: FrameType | None) -> None:
        if not first and driver.is_gone(its_driver):
            request(DRIVER_IS_GONE)
        if first and time.monotonic() - first[0] >= AGREE_S and not (folder / AGREED).exists():
            raise EndedBySignal(f"the ranks did not agree to stop within {AGREE_S:.0f} s of being asked to")

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        **dict.fromkeys(SIGNALS, ask), signal.SIGINT: end, signal.SIGHUP: end, signal.SIGALRM: look,
    }  # fmt: skip
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def deadline() -> float | None:
    """When this job will be killed, seconds since 1970. Raises UserError where the variable holds no number."""
    text = os.environ.get(DEADLINE)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(f"`{text}` is no time", DEADLINE, "set it to seconds since 1970, or unset it") from None


# The chain of links that one run may need


@dataclass
class Chain:
    """The links of one run, from its first start to its result, and what the next one goes on from."""

    run: str
    folder: Path
    """The folder of the result."""
    resume: Path | None = None
    borrowed: bool = False
    """`resume` is another run's checkpoint."""
    done: int = 0
    """Steps of a complete run."""
    links: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints and the record of links lie."""
        return self.folder / CHECKPOINTS

    def for_job(self) -> dict[str, Any]:
        """What the processes of a run have to know about stopping and going on."""
        return {
            "beside": self.folder.resolve(),
            "resume": None if self.resume is None else self.resume.resolve(),
            "borrowed": self.borrowed,
            "deadline": deadline(),
        }

    def add_to(self, result: dict[str, Any]) -> None:
        """The links of a finished run, and what a reader should be warned of."""
        self.done = result.get("steps_done", 0)
        self.end_link(self.done, "the run is complete")
        result["links"] = [{key: value for key, value in link.items() if key != "from_step"} for link in self.links]
        result["warnings"] = [*self.warnings, *result.get("warnings", [])]

    def save(self) -> None:
        """Write the record, so that a link that is killed is known to have been."""
        write_json(self.checkpoints / LINKS, {"run": self.run, "links": self.links, "warnings": self.warnings})

    def state(self, state: str, progress: int, cause: str) -> None:
        """Write state.json, which an executor reads."""
        write_state(self.folder, state, progress, cause)

    def end_link(self, step: int | None, cause: str) -> None:
        """Close the link that is open; `step` is how far the run has come."""
        link, ended = self.links[-1], datetime.datetime.now(datetime.UTC)
        hours = (ended - datetime.datetime.fromisoformat(link["started"])).total_seconds() / 3600
        steps = None if step is None else step - link["from_step"]
        link.update(ended=ended.isoformat(timespec="seconds"), hours=round(hours, 6), steps=steps, cause=cause)


@contextlib.contextmanager
def chain(run: str, out: Path, borrow: Path | None = None) -> Iterator[Chain]:
    """One link of a run's chain: finds what to go on from, and records how the link ended.

    `borrow` is what a run that has no checkpoint of its own begins from. A result that is there already makes what lies
    in `checkpoint/` meaningless: the run starts anew. Raises UserError where the checkpoints are those of another run.
    """
    found = Chain(run, out.parent)
    if out.exists():
        shutil.rmtree(found.checkpoints, ignore_errors=True)
    for name in (STATE_FILE, STOP_FILE):
        (out.parent / name).unlink(missing_ok=True)
    _begin(found, borrow)
    try:
        yield found
    except Stopped as stop:
        found.end_link(stop.step, stop.cause)
        found.save()
        found.state("checkpointed", stop.step, stop.cause)
        (out.parent / STOP_FILE).unlink(missing_ok=True)
        raise
    except EndedBySignal as error:
        found.end_link(_progress(found), str(error))
        found.save()
        raise
    except Exception as error:
        cause = str(error).partition("\n")[0]
        found.end_link(_progress(found), cause)
        if isinstance(error, UserError) and not _progress(found):
            shutil.rmtree(found.checkpoints, ignore_errors=True)  # it never began
        else:
            found.save()
        found.state("failed", _progress(found), cause)
        raise
    found.state("finished", found.done, "the result is written")
    shutil.rmtree(found.checkpoints, ignore_errors=True)


def _begin(found: Chain, borrow: Path | None) -> None:
    folder = found.checkpoints
    _read_record(found)
    if any(folder.glob("step-*")) or any(folder.glob(".step-*")):
        from scalestudy.training import checkpoint

        checkpoint.clear_partial(folder)
        found.resume, warnings = checkpoint.newest_whole(folder)
        found.warnings += warnings
        if found.resume is not None:
            facts = checkpoint.read_facts(found.resume)
            _of_this_run(found, facts["run"])
            found.warnings += _changes(facts)
        for warning in warnings:
            print(f"scalestudy: {found.run}: {warning}", file=sys.stderr, flush=True)
    if found.resume is None and borrow is not None:
        _borrow(found, borrow)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    for link in found.links:
        if link["cause"] is None:
            _close_silent(found, link)
    job = next((os.environ[name] for name in JOB_IDS if os.environ.get(name)), None)
    begun = 0 if found.resume is None else int(found.resume.name.partition("-")[2])
    found.links.append(
        {"started": started, "ended": None, "job": job, "from_step": begun, "hours": None, "steps": None, "cause": None}
    )  # fmt: skip
    found.save()
    if found.resume is not None and not found.borrowed:
        found.state("running", begun, f"it goes on after step {begun}")


def _borrow(found: Chain, path: Path) -> None:
    from scalestudy.training import checkpoint

    facts = checkpoint.read_facts(path)
    found.resume, found.borrowed = path, True
    found.warnings.append(
        f"the first {facts['step']} steps were made by {facts['run']} on {facts['ranks']} ranks; all times are of the steps since"
    )


def _close_silent(found: Chain, link: dict[str, Any]) -> None:
    """A link that was killed: its last checkpoint is the last that is known of it."""
    link["cause"] = "ended without a word; its time is that to its last checkpoint"
    link["steps"] = max(0, _progress(found) - link["from_step"])
    if found.resume is not None and link["steps"]:
        began = datetime.datetime.fromisoformat(link["started"]).timestamp()
        link["hours"] = round(max(0.0, found.resume.stat().st_mtime - began) / 3600, 6)


def _read_record(found: Chain) -> None:
    file = found.checkpoints / LINKS
    if not file.exists():
        return
    try:
        record = read_json(file)
    except UserError:
        found.warnings.append("the record of earlier links is damaged: they are not listed")
        return
    _of_this_run(found, record["run"])
    found.links, found.warnings = record["links"], record["warnings"]


def _of_this_run(found: Chain, run: str) -> None:
    if run != found.run:
        what = f"holds checkpoints of another run, {run}"
        raise UserError(what, str(found.checkpoints), "delete that folder, or write the result elsewhere")


def _changes(facts: dict[str, Any]) -> list[str]:
    """What has changed since the checkpoint was written that a reader of the result should know."""
    if facts["code"] == code_digest():
        return []
    return [f"the measuring code changed while the run was stopped after step {facts['step']}"]


def _progress(found: Chain) -> int:
    """Steps that the newest checkpoint holds."""
    names = sorted(path.name for path in found.checkpoints.glob("step-*"))
    return int(names[-1].partition("-")[2]) if names else 0


def raise_if_stopped(folder: Path) -> None:
    """Raise Stopped where the ranks left word in the job's scratch folder that they stopped on purpose."""
    if (folder / STOPPED).exists():
        said = read_json(folder / STOPPED)
        raise Stopped(said["step"], said["cause"])
