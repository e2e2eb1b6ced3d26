"""Runs functions one after the other: a line each, a JSON file of all outcomes, and on after a failure."""

from __future__ import annotations

import gc
import json
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.ratios import Estimate, ratio_of

Values = dict[str, Any]


class NotHere(Exception):
    """What a machine lacks for a check; the message says what."""


@dataclass(frozen=True)
class Outcome:
    """What one function showed."""

    part: str
    name: str
    status: str
    """`passed`, `failed`, `not here` or `no time left`."""
    seconds: float
    text: str
    values: Values = field(default_factory=dict)

    def line(self) -> str:
        """As it is printed."""
        first, *more = self.text.split("\n")
        lines = [f"{self.status:12} {self.seconds:7.1f} s  {self.part}: {self.name}: {first}"]
        return "\n".join([*lines, *(f"{'':24}{line}" for line in more[:12])])


@dataclass
class Suite:
    """The state of one call, or of one group of it: where files go, until when, on what device."""

    work: Path
    """Where checks write; nothing of it has to be kept."""
    end_s: float
    """On the monotonic clock, which all processes of a machine share."""
    device: torch.device
    studies: tuple[str, ...] = ()
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def dry(self) -> bool:
        """Whether there is no GPU: sizes are small, and only what makes sense on a CPU is held."""
        return self.device.type == "cpu"

    @property
    def left_s(self) -> float:
        """Seconds until everything has to have ended; 1 at least, so that a limit made of it is one."""
        return max(1.0, self.end_s - time.monotonic())

    @property
    def kept(self) -> Path:
        """Where a part leaves the files that are to be brought home."""
        path = self.work / "kept"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def need_gpu(self, why: str) -> None:
        """Leave a check out where there is no GPU."""
        if self.dry:
            raise NotHere(f"needs a GPU: {why}")

    def size(self, gpu: int, cpu: int) -> int:
        """A number of steps, samples or the like: large where it counts, small where only the code is tried."""
        return cpu if self.dry else gpu

    def folder(self, name: str) -> Path:
        """A new folder for a check's files."""
        path = self.work / "files" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def run(self, part: str, function: Callable[[Suite], Values]) -> Outcome:
        """Run one function, print its line, and give back the device memory that it took."""
        begin = time.monotonic()
        values: Values = {}
        try:
            if begin > self.end_s:
                status, text = "no time left", "raise --minutes"
            else:
                values = function(self)
                status, text = "passed", as_text(values)
        except NotHere as reason:
            status, text = "not here", str(reason)
        except AssertionError as error:
            status, text = "failed", str(error).strip() or "an assertion without words"
        except Exception as error:
            status, text = "failed", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
        outcome = Outcome(part, function.__name__, status, round(time.monotonic() - begin, 2), text, values)
        self.outcomes.append(outcome)
        print(outcome.line(), flush=True)
        gc.collect()
        if not self.dry and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return outcome


def write(file: Path, head: Values, outcomes: list[Outcome]) -> None:
    """The JSON file of all outcomes, rewritten after each: a call that is cut off loses nothing."""
    content = {"machine": head, "outcomes": [asdict(outcome) for outcome in outcomes]}
    file.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")


def as_text(values: Values) -> str:
    """Numbers and words in one line; lists and maps are for the JSON file alone."""
    parts = []
    for name, value in values.items():
        if isinstance(value, float):
            parts.append(f"{name} {value:.4g}")
        elif isinstance(value, (int, str)):
            parts.append(f"{name} {value}")
    return ", ".join(parts) or "as promised"


def machine(device: torch.device) -> Values:
    """What the numbers are measured on."""
    found: Values = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": "cpu",
    }
    if device.type == "cuda":
        properties: Any = torch.cuda.get_device_properties(device)
        found |= {
            "device": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 2),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


ALTERNATIONS = 7


def paired(suite: Suite, one: Callable[[], float], other: Callable[[], float], turns: int = ALTERNATIONS) -> Estimate:
    """Ratio of the seconds of `one` to those of `other`: the geometric mean over turns, with its 95 % interval.

    Either is first in every second turn; the first turn warms up and does not count. All turns are of one process: what
    differs between processes is not in the interval.
    """
    ratios = []
    for turn in range(1 + suite.size(turns, 1)):
        if turn % 2:
            first = one()
            second = other()
        else:
            second = other()
            first = one()
        if turn:
            ratios.append(first / second)
    return ratio_of(ratios)


def estimate(name: str, found: Estimate) -> Values:
    """A ratio and its interval by name, and in how many turns it was taken."""
    interval = f"[{found.low:.4f} .. {found.high:.4f}] of {found.count} turns"
    return {name: found.value, f"{name}_interval": interval if found.high < float("inf") else "none of one turn"}


def seconds_of(device: torch.device, work: Callable[[], Any]) -> float:
    """Wall time of `work`, the device's queue empty before and after."""
    synchronise(device)
    begin = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - begin


def synchronise(device: torch.device) -> None:
    """Wait for all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Inside, float32 products use TF32 or not, in matrix products and convolutions alike; afterwards as before."""
    from scalestudy.training.world import allow_tf32

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    allow_tf32(allowed)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
