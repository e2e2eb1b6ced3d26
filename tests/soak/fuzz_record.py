"""For how long each parser has been fuzzed, over all calls of tests/soak/fuzz.py: kept as JSON, printed as text beside it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.files import write_json, write_text

ASKED_MINUTES = 60.0
"""Of each parser, once."""


@dataclass(frozen=True)
class Stretch:
    """One parser, fuzzed without a pause."""

    engine: str
    parser: str
    processor_s: float
    inputs: int
    found: str = ""
    """What ended the parser with anything but a message; empty where nothing did."""


class Record:
    """What is kept in one file; several processes may add to it at once."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> dict[str, Any]:
        """`parsers`: seconds and inputs by engine and parser; `found`: a line for each finding; `dates`; `machine`."""
        if not self.file.exists():
            return {"parsers": {}, "found": [], "dates": [], "machine": ""}
        kept: dict[str, Any] = json.loads(self.file.read_text())
        return kept

    def seconds(self, engine: str, parser: str) -> float:
        """Of the processor, so far."""
        return float(self.read()["parsers"].get(engine, {}).get(parser, {}).get("processor_s", 0))

    def add(self, stretch: Stretch, parsers: Iterable[str]) -> None:
        """Add a stretch, and print the text anew, with a line for each of `parsers`."""
        today = time.strftime("%Y-%m-%d")
        with _only_writer(self.file.parent):
            kept = self.read()
            known = kept["parsers"].setdefault(stretch.engine, {})
            before = known.get(stretch.parser, {"processor_s": 0.0, "inputs": 0})
            known[stretch.parser] = {
                "processor_s": round(before["processor_s"] + stretch.processor_s, 1),
                "inputs": before["inputs"] + stretch.inputs,
            }
            if stretch.found:
                kept["found"].append(
                    {"date": today, "engine": stretch.engine, "parser": stretch.parser, "what": stretch.found}
                )
            kept["dates"] = sorted({*kept["dates"], today})
            kept["machine"] = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
            write_json(self.file, kept)
            write_text(self.file.with_suffix(".txt"), text(kept, parsers))


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Held by one process at a time, by the lock of the folder itself, so that no file is left."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def text(kept: dict[str, Any], parsers: Iterable[str]) -> str:
    """A line per parser, what is short of an hour, and every finding."""
    engines = sorted(kept["parsers"], reverse=True)  # hypothesis first: it needs nothing that is not installed
    names = list(parsers)
    of = {(engine, name): _of(kept, engine, name) for engine in engines for name in names}
    lines = [
        f"# {_span(kept['dates'])}; {kept['machine']}; minutes of the processor, all calls added up",
        " " * 14 + "".join(f"{engine:>26}" for engine in engines),
        " " * 14 + f"{'minutes':>12}{'inputs':>14}" * len(engines),
    ]
    for name in names:
        lines.append(f"{name:14}" + "".join(_columns(*of[engine, name]) for engine in engines))
    totals = [tuple(map(sum, zip(*(of[engine, name] for name in names), strict=True))) for engine in engines]
    lines += [f"{'in all':14}" + "".join(_columns(*total) for total in totals), ""]
    for engine in engines:
        whole = sum(of[engine, name][0] >= 60 * ASKED_MINUTES for name in names)
        least = min(of[engine, name][0] for name in names) / 60
        lines.append(
            f"{engine}: {whole} of {len(names)} parsers have had the {ASKED_MINUTES:g} minutes that are asked of each; "
            f"the least had {least:.1f}"
        )
    found = kept["found"]
    lines += ["", f"Inputs that ended a parser with anything but a message: {len(found) or 'none'}"]
    for each in found:
        lines.append(f"  {each['date']} {each['engine']} {each['parser']}: {' '.join(each['what'].split())[:300]}")
    return "\n".join(lines) + "\n"


def _of(kept: dict[str, Any], engine: str, parser: str) -> tuple[float, int]:
    one = kept["parsers"][engine].get(parser, {"processor_s": 0.0, "inputs": 0})
    return one["processor_s"], one["inputs"]


def _columns(processor_s: float, inputs: int) -> str:
    return f"{processor_s / 60:12.1f}{inputs:14,}"


def _span(dates: list[str]) -> str:
    return f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else "".join(dates)
