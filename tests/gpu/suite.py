"""Runs functions one after the other: a line each, one JSON file at the end, and on after a failure."""

from __future__ import annotations

import json
import platform
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

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


@dataclass
class Suite:
    """The state of one call: where files go, until when, on what device."""

    out: Path
    end_s: float
    device: torch.device
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def dry(self) -> bool:
        """Whether there is no GPU: sizes are small, and only what makes sense on a CPU is held."""
        return self.device.type == "cpu"

    def need_gpu(self, why: str) -> None:
        """Leave a check out where there is no GPU."""
        if self.dry:
            raise NotHere(f"needs a GPU: {why}")

    def size(self, gpu: int, cpu: int) -> int:
        """A number of steps, samples or the like: large where it counts, small where only the code is tried."""
        return cpu if self.dry else gpu

    def folder(self, name: str) -> Path:
        """A new folder for a check's files."""
        path = self.out / "files" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def run(self, part: str, function: Callable[[Suite], Values]) -> None:
        """Run one function, print its line, and write everything known so far."""
        begin = time.monotonic()
        values: Values = {}
        try:
            if begin > self.end_s:
                status, text = "no time left", "raise --minutes"
            else:
                values = function(self)
                status, text = "passed", _line(values)
        except NotHere as reason:
            status, text = "not here", str(reason)
        except AssertionError as error:
            status, text = "failed", str(error).strip() or "an assertion without words"
        except Exception as error:
            status, text = "failed", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
        outcome = Outcome(part, function.__name__, status, round(time.monotonic() - begin, 2), text, values)
        self.outcomes.append(outcome)
        first, *more = text.split("\n")
        print(f"{status:12} {outcome.seconds:7.1f} s  {part}: {function.__name__}: {first}", flush=True)
        for line in more[:12]:
            print(f"{'':24}{line}", flush=True)
        self.write()

    def write(self) -> Path:
        """The JSON file of all outcomes, rewritten after each: a run that is cut off loses nothing."""
        file = self.out / "gpu.json"
        content = {"machine": machine(self.device), "outcomes": [asdict(outcome) for outcome in self.outcomes]}
        file.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
        return file


def _line(values: Values) -> str:
    parts = []
    for name, value in values.items():
        if isinstance(value, float):
            parts.append(f"{name} {value:.4g}")
        elif isinstance(value, (int, str)):
            parts.append(f"{name} {value}")
    return ", ".join(parts) or "as promised"


def machine(device: torch.device) -> Values:
    """What the numbers were measured on."""
    found: Values = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
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


def paired(
    suite: Suite, one: Callable[[], float], other: Callable[[], float], *, turns: int = 7
) -> tuple[float, float, float]:
    """Median ratio of `one` to `other`, in turns, either first in every second pair, and the range of the middle half.

    Both return seconds. The first pair warms up and does not count.
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
    ratios.sort()
    count = len(ratios)
    return ratios[count // 2], ratios[count // 4], ratios[(3 * count) // 4]


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
