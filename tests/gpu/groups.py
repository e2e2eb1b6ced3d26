"""Groups of functions, each run in a process of its own on a GPU: after an error that a device keeps, others still count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.gpu.suite import Outcome, Suite, Values
from tests.gpu.tries import ROOT, environment

Function = Callable[[Suite], Values]
ALLOWANCE_S = 10.0
"""A group that has not ended so long after its limit is killed."""


@dataclass(frozen=True)
class Group:
    """Functions that may share a process."""

    part: str
    name: str
    functions: tuple[Function, ...]
    limit_s: float = 200.0
    """After which it is ended, so that one that hangs does not take the time of the others."""

    @property
    def name_of_process(self) -> str:
        """Of no other group."""
        return f"{self.part}-{self.name}"

    def only(self, words: str) -> Group:
        """Those whose name contains some words."""
        return replace(self, functions=tuple(one for one in self.functions if words in one.__name__))


def run_here(suite: Suite, group: Group, file: Path | None = None) -> list[Outcome]:
    """Run a group in this process; each outcome is appended to a file at once, where there is one."""
    found = []
    for function in group.functions:
        outcome = suite.run(group.part, function)
        found.append(outcome)
        if file is not None:
            with open(file, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(outcome.__dict__, default=str) + "\n")
    return found


def run_apart(suite: Suite, group: Group, words: Sequence[Any]) -> list[Outcome]:
    """Run a group in a process of its own, which `words` start; what it did not come to has failed with it."""
    if time.monotonic() > suite.end_s:
        return run_here(suite, group)  # each says that no time is left
    file = suite.work / f"{group.name_of_process}.jsonl"
    begin = time.monotonic()
    end_s = min(suite.end_s, begin + group.limit_s)
    command = [*words, "--group", group.name_of_process, "--until", repr(end_s), "--outcomes", str(file)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)
    try:
        ended = process.wait(end_s - begin + ALLOWANCE_S)
        why = f"its process ended with status {ended}"
    except subprocess.TimeoutExpired:
        ended, why = -1, f"killed {time.monotonic() - begin:.0f} s after its group began: the time was over"
    finally:
        with suppress(ProcessLookupError):  # with all that it has started, also where it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = [Outcome(**json.loads(line)) for line in lines]
    if ended:
        seconds = round(time.monotonic() - begin - sum(outcome.seconds for outcome in found), 2)
        for function in group.functions[len(found) :]:
            outcome = Outcome(group.part, function.__name__, "failed", seconds, why)
            print(outcome.line(), flush=True)
            found.append(outcome)
            seconds, why = 0.0, "its process had ended before"
    return found


def own_command(work: Path, *more: str) -> list[Any]:
    """How a group's process is started."""
    return [sys.executable, "-m", "tests.gpu", "--work", str(work), *more]
