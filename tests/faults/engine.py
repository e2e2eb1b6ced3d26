"""One case: a step meets a fault, what was promised is checked, and the same command is run again."""

from __future__ import annotations

import datetime
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.faults.faults import LIMIT_S, Fault, Limited, Met, Stopped
from tests.faults.steps import Outcome, Step
from tests.faults.world import PREFIX, ROOT, Case, NotHere, NotProvoked, Running, World

HELD, BROKE, EXEMPT, NOT_HERE, NOT_RUN = "held", "broke", "does not apply", "not here", "not run"
NOT_PROVOKED = "not provoked"
"""A defect of the test."""
PROMISES = (
    "nothing wrong or partial is accepted",
    "no command hangs for more than 60 s",
    "no process is left",
    "one message says what happened and what to do next, without a traceback",
    "once the fault is gone, the same command ends with the same bytes, times aside",
)
ORPHANS_S = 45.0
"""What was started may take so long to notice that it is to end; a run's ranks have 30 s to agree."""
MESSAGE = re.compile(r"^\s*((scalestudy|multinode): |WorkflowError)|\bFAILED ")
"""The line of a message: of a command, of Snakemake, of a driver about a job."""
NOT_MESSAGES = re.compile(r"^(?:scalestudy|multinode): (waiting for|warning|notice|process \d+ stops)")
TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^[ |]*File \".*\", line \d+, in ", re.MULTILINE)
"""Also the end of one, in the last lines of a log."""
TAIL = re.compile(r"^    (\| .*|last .* of .*)$", re.MULTILINE)
"""The end of a log that a message quotes."""
NEXT = re.compile(r"same command|[Tt]o resume|^    \S|(?:give|run) .* again|start again|[Ww]ait for it", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """What was seen in one case."""

    step: str
    fault: str
    status: str
    """One of the five above."""
    seen: str
    seconds: float = 0.0
    date: str = ""

    def plain(self) -> dict[str, Any]:
        """As data."""
        return asdict(self)

    @property
    def line(self) -> str:
        """In one line."""
        return f"{self.step:10}{self.fault:16}{self.status:15}{self.seconds:6.1f} s  {self.seen}"


@dataclass(frozen=True)
class Control:
    """The step without any fault."""

    outcome: Outcome
    seconds: float
    files: frozenset[str]


class Matrix:
    """Runs cases; each step is first run without any fault, once."""

    def __init__(self, world: World, keep: bool = False) -> None:
        self.world, self.keep = world, keep
        self._controls: dict[tuple[str, ...], Control] = {}

    def run(self, step: Step, fault: Fault) -> Cell:
        """One case, to its end."""
        begin = time.monotonic()
        if why := fault.not_for(step):
            return Cell(step.name, fault.name, EXEMPT, why)
        met_by = fault.met_by(step)
        try:
            broken, seen = self._met(met_by, fault)
            status = BROKE if broken else HELD
            text = "; ".join([*(f"BROKEN: {each}" for each in broken), *seen])
        except NotHere as why:
            status, text = NOT_HERE, str(why)
        except NotProvoked as why:
            status, text = NOT_PROVOKED, str(why)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return Cell(step.name, fault.name, status, text, round(time.monotonic() - begin, 1), today)

    def control(self, step: Step) -> Control:
        """The step without any fault, in a copy of its own."""
        if step.command not in self._controls:
            with self.world.case(f"{step.name}-control") as case:
                step.begin(case.view)
                begin = time.monotonic()
                running = case.start(step.command)
                if not running.ended(2 * LIMIT_S) or running.process.returncode != 0:
                    raise NotProvoked(f"the step fails without any fault: {running.said[-1500:]}")
                seconds = time.monotonic() - begin
                outcome = step.outcome(case.view)
                assert outcome, f"{step.name} leaves nothing that could be compared"
                self._controls[step.command] = Control(outcome, seconds, frozenset(case.files()))
        return self._controls[step.command]

    def _met(self, step: Step, fault: Fault) -> tuple[list[str], list[str]]:
        """What was broken, and what was seen."""
        control = self.control(step)
        name = f"{step.name}-{fault.name}"
        with self.world.case(name, own_disk=fault.own_disk, leave=self.keep) as case:
            step.begin(case.view)
            mets = fault.provoke(case, step)
            if fault.must_act and not case.mark.exists():
                raise NotProvoked("the stand-in saw no such call: nothing was provoked")
            if isinstance(fault, Limited) and all(_well(met) for met in mets):
                raise NotProvoked("it ended well: the limit was not reached")
            broken = [each for met in mets for each in _broken_by(met, fault)]
            if fault.ends_well and not any(_well(met) for met in mets):
                broken.append("no command ended well")
            broken += _left_behind(case)
            broken += _wrong(step.outcome(case.view), control.outcome, all(_well(met) for met in mets))
            seen = [_ending(met) for met in mets]
            if isinstance(fault, Stopped):
                seen.append(f"it was stopped for {fault.stop_s:g} s")
            case.end_processes()  # what hangs would hold up the next command too
            fault.heal(case)
            again = case.start(fault.command(step))
            broken += _again(again, step, case, control)
            litter = sorted(path for path in case.files() - control.files if "/log/" not in path and ".log" not in path)
            if litter:
                seen.append(f"files that stay behind: {', '.join(litter[:3])}")
            return broken, seen


def _well(met: Met) -> bool:
    return met.running.process.returncode == 0


def _broken_by(met: Met, fault: Fault) -> Iterator[str]:
    """What a command that met a fault did not keep."""
    said = met.running.said
    if met.hung:
        yield f"the command hung: {_short(said[-300:])}"
        return
    if TRACEBACK.search(said):
        yield f"a traceback: {_short(said[-300:])}"
    if _well(met) or met.killed:
        return
    messages = _messages(said)
    if not messages:
        yield f"no message (status {met.running.process.returncode}): {_short(said[-300:])}"
    elif fault.words and not re.search(fault.words, said):
        yield f"the message does not say what happened: {_short(messages[-1])}"
    elif not NEXT.search(TAIL.sub("", said)):
        yield f"the message does not say what to do next: {_short(messages[-1])}"


def _wrong(found: Outcome, wanted: Outcome, ended_well: bool) -> Iterator[str]:
    """What of an outcome is not as it has to be."""
    different = sorted(name for name in found if found[name] != wanted.get(name))
    if different:
        yield f"accepted, and wrong: {', '.join(different[:5])}"
    if ended_well and found.keys() != wanted.keys():
        yield f"it ended with status 0 and lacks {', '.join(sorted(wanted.keys() - found.keys())[:5])}"


def _left_behind(case: Case) -> list[str]:
    """Processes that do not end by themselves."""
    end = time.monotonic() + ORPHANS_S
    while (left := case.processes()) and time.monotonic() < end:
        time.sleep(0.1)
    return [f"processes are left: {', '.join(sorted(process.name() for process in left))}"] if left else []


def _again(again: Running, step: Step, case: Case, control: Control) -> Iterator[str]:
    """What is wrong with the same command, given again without the fault."""
    if not again.ended(LIMIT_S + 2 * control.seconds):
        yield f"run again, the command hung: {_short(again.said[-300:])}"
    elif again.process.returncode != 0:
        yield f"run again, it ended with status {again.process.returncode}: {_short(again.said[-500:])}"
    else:
        yield from (f"run again: {each}" for each in _wrong(step.outcome(case.view), control.outcome, True))


def _messages(said: str) -> list[str]:
    """The lines that tell what went wrong."""
    lines = re.sub(r"(WorkflowError|DriverStopped):\n", "WorkflowError: ", said).splitlines()
    return [line for line in lines if MESSAGE.search(line) and not NOT_MESSAGES.match(line)]


def _ending(met: Met) -> str:
    """How a command ended, in a few words."""
    status = met.running.process.returncode
    if status == 0:
        return "ended well"
    if met.killed:
        return "was killed"
    messages = _messages(met.running.said)
    several = f" ({len(messages)} messages)" if len(messages) > 1 else ""
    return f"status {status}, “{_short(messages[-1].strip())}”{several}" if messages else f"status {status}"


def _short(text: str) -> str:
    """One line, without places and names of this machine."""
    line = re.sub(rf"/\S*({PREFIX}|scalestudy-box-)[^/\s]+/", "", " ".join(text.split()))
    line = re.sub(r"/\S*/(?=lib/python3\.)", "", line)  # where this Python is installed
    line = line.replace(str(ROOT), ".").replace(platform.node(), "HOST")
    return line if len(line) <= 240 else f"{line[:150]} … {line[-80:]}"


def machine() -> str:
    """What the cases ran on."""
    return f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
