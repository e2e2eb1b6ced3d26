"""One observed run of a user's command: start it with hooks, wait for its records, end all of its processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.processes import REQUEST, end_program

INJECTED = Path(__file__).parent / "inject"
FORWARDED_BY_OPEN_MPI = "OMPI_MCA_mca_base_env_list"
LAST_LINES = 8


@dataclass(frozen=True)
class Removal:
    """A part of the step that is taken away, or a setting that is changed, in a whole run."""

    name: str
    remove: tuple[str, ...] = ()
    workers: float = 1
    pin: bool = False

    @property
    def is_of_parts(self) -> bool:
        """Whether the run shows parts of the step, not a setting."""
        return self.workers == 1 and not self.pin


@dataclass(frozen=True)
class Rank:
    """One rank's record of a window; times in seconds on its own clock."""

    rank: int
    world: int
    steps: int
    window_s: float
    between_s: float
    waited_s: float
    """For the batches of training."""
    loaders: tuple[dict[str, Any], ...]
    is_distributed: bool
    is_compiled: bool
    on_gpu: bool
    parameters: float

    @property
    def step_s(self) -> float:
        """Mean time from the end of one optimiser step to the end of the next."""
        return self.window_s / self.steps

    @property
    def training_loaders(self) -> list[dict[str, Any]]:
        """The loaders whose batches optimiser steps follow."""
        return [loader for loader in self.loaders if loader["is_for_training"]]


@dataclass(frozen=True)
class Observation:
    """The records of one window of a run, by rank; `failure` says why there are none."""

    ranks: tuple[Rank, ...]
    seconds: float
    """Of the whole run."""
    failure: str = ""

    @property
    def step_s(self) -> float:
        """Step time of the slowest rank, in seconds."""
        return max(rank.step_s for rank in self.ranks)


def observe(
    command: Sequence[str],
    removal: Removal,
    steps: int,
    warmup: int,
    timeout_s: float,
    folder: Path,
    exchange: Sequence[bool] = (True,),
) -> list[Observation]:
    """Run the command once, with a part taken away; return a window of `steps` optimiser steps for each of `exchange`.

    In each window the ranks exchange or do not. `folder` receives the records and the command's output. Every process of
    the command has ended on return.
    """
    folder.mkdir(parents=True)
    request = {"out": str(folder.absolute()), "warmup": warmup, "steps": steps, "exchange": list(exchange), "leave": True,
               **vars(removal)}  # fmt: skip
    begin = time.monotonic()
    log = folder / "output.log"
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                list(command), env=hooked(request, command), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            status = None
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout_s)
    except OSError as error:
        return [Observation((), 0.0, f"{command[0]} cannot be started: {error.strerror}")] * len(exchange)
    finally:
        end_program(request["out"])
    seconds = time.monotonic() - begin
    windows = [read_ranks(folder, number) for number in range(len(exchange))]
    failures = [_failure(ranks, status, steps, timeout_s, folder, log) for ranks in windows]
    failure = next(filter(None, failures), "")
    return [Observation(ranks, seconds, failure) for ranks in windows]


def hooked(request: dict[str, Any], command: Sequence[str]) -> dict[str, str]:
    """Return the environment of an observed command."""
    path = os.pathsep.join(filter(None, [str(INJECTED), os.environ.get("PYTHONPATH", "")]))
    made = {**os.environ, "PYTHONPATH": path, REQUEST: json.dumps(request)}
    if "-x" not in command:  # mpirun refuses this variable beside that option
        passed = filter(None, [os.environ.get(FORWARDED_BY_OPEN_MPI, ""), "PYTHONPATH", REQUEST])
        made[FORWARDED_BY_OPEN_MPI] = ";".join(passed)
    return made


def read_ranks(folder: Path, window: int) -> tuple[Rank, ...]:
    """Return the records of a window in a run's folder, by rank; without those of ranks that did not reach it."""
    records = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("rank.*.json")]
    window_records = [{**record, **record["windows"][window]} for record in records if window < len(record["windows"])]
    ranks = [Rank(**{name: record[name] for name in Rank.__dataclass_fields__}) for record in window_records]
    return tuple(sorted(ranks, key=lambda rank: rank.rank))


def _failure(ranks: tuple[Rank, ...], status: int | None, steps: int, timeout_s: float, folder: Path, log: Path) -> str:
    """Return the reason why a run cannot be used, with the last lines of its output; empty where it can.

    A script that ends by itself may be shorter than the window; one that fails in it may not.
    """
    required = 1 if status == 0 else steps
    if ranks and len(ranks) == ranks[0].world and all(rank.steps >= required for rank in ranks):
        return ""
    if status is None:
        return f"no result after {timeout_s:.0f} s{_quoted(log)}"
    if status != 0:
        return f"the command failed with status {status}{_quoted(log)}"
    if ranks:
        least, world = min(rank.steps for rank in ranks), ranks[0].world
        return (
            "the script ended before a window of optimiser steps: train longer, or give fewer `--steps`"
            if len(ranks) == world
            else f"{len(ranks)} of {world} ranks were seen, with {least} optimiser steps in their windows or more"
        )
    if list(folder.glob("hooked.*")):
        return f"no step of a torch.optim optimiser was seen{_quoted(log)}"
    return (
        "Python did not load the hooks, which are on PYTHONPATH: a command that sets it, `python -I`, `-E` and `-S` leave "
        f"them out{_quoted(log)}"
    )


def _quoted(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return "".join(f"\n    {line}" for line in lines)
