"""The steps of a program as it reports them, as its output shows them, or as hooks see them; and its window."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from scalestudy.spec.run import Measure

SOURCES = ("reported", "matched", "steps")
"""Beginnings of the names of files: lines of `report`, matches in the output, optimiser steps that hooks saw. The first
kind that has a step counts."""
SETTLED = 10
"""Marks at least, one after the other, before a count is taken to have begun anew: a second process may only print later."""


@dataclass(frozen=True)
class Mark:
    """The end of a step, or of the last of several, on its host's `perf_counter`."""

    clock_s: float
    step: int
    samples: float | None = None
    loss: float | None = None
    waited_s: float | None = None
    """Wait for data since the window began, as hooks see it."""
    bytes: float | None = None
    flops: float | None = None


MARK_FIELDS = tuple(one.name for one in fields(Mark))
"""Clock, step, and the values that a step may have; in this order in a checkpoint."""
Earlier = dict[str, list[Mark]]
"""Marks of a run's earlier attempts, by source and rank as `reported.0`."""


@dataclass
class Trace:
    """The marks of one process, read as they are written, after those of earlier attempts at the run."""

    file: Path
    marks: list[Mark] = field(default_factory=list)
    """Those that go on; where two processes print their steps, the one that is ahead."""
    losses: list[float] = field(default_factory=list)
    """In the order in which they came, also of steps that were counted before."""
    _behind: list[int] = field(default_factory=list)
    """Steps since the last of `marks` that were counted before."""
    _anew: list[int] = field(default_factory=list)
    """How many marks there were each time when the count began anew and later went on beyond them."""
    _read_bytes: int = 0
    _waited_before_s: float | None = None
    """Wait for data in earlier attempts; None until this one has a mark."""

    def __post_init__(self) -> None:
        """Begin with the losses of earlier attempts."""
        self.losses += [mark.loss for mark in self.marks if mark.loss is not None]

    @property
    def name(self) -> str:
        """Source and rank, as `reported.0`."""
        return ".".join(self.file.name.split(".")[:2])

    @property
    def rank(self) -> int:
        """The process's rank."""
        return int(self.name.split(".")[1])

    def refresh(self) -> None:
        """Read the lines that are new and complete."""
        with self.file.open("rb") as stream:
            stream.seek(self._read_bytes)
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            if "begins" in entry:
                if self._waited_before_s is not None:  # after a process of this attempt that is over
                    self.marks, self.losses, self._behind, self._anew = [], [], [], []
                continue
            step = entry.get("step", self.marks[-1].step + 1 if self.marks else 1)
            self._add(Mark(entry["clock"], step, *map(entry.get, MARK_FIELDS[2:])))

    def _add(self, mark: Mark) -> None:
        """Add a mark. The first one after earlier attempts takes the place of their last: a first step is never timed."""
        self.losses += [] if mark.loss is None else [mark.loss]
        if self._waited_before_s is None:
            self._waited_before_s = 0.0
            if self.marks:
                last = self.marks[-1]
                later_s, steps = mark.clock_s - last.clock_s, mark.step - last.step
                self.marks = [replace(one, clock_s=one.clock_s + later_s, step=one.step + steps) for one in self.marks]
                self._waited_before_s = last.waited_s or 0.0
                return
        if self.marks and (mark.step, 0) < (self.marks[-1].step, len(self._behind)):
            self._behind.append(mark.step)
            return
        if self._begins_anew(max(len(self.marks), SETTLED)):
            self._anew.append(len(self.marks))
        self._behind.clear()
        waited_s = None if mark.waited_s is None else mark.waited_s + self._waited_before_s
        self.marks.append(replace(mark, waited_s=waited_s))

    def _begins_anew(self, marks: int = 1) -> bool:
        """Whether the last `marks` marks or more were counted before, from the first step on."""
        return len(self._behind) >= marks and self._behind[0] <= self.marks[0].step < self.marks[-1].step

    def counted(self, measure: Measure) -> tuple[int, int] | None:
        """Return the marks from the end of the warm-up to where the program counts its steps anew; None without such marks.

        The first mark is the end of the first step: it is never timed.
        """
        done = [mark.step - self.marks[0].step + 1 for mark in self.marks]
        begin = next((index for index, count in enumerate(done) if count >= max(1, measure.warmup_steps)), None)
        return None if begin is None else (begin, next((end for end in self._anew if end > begin), len(done)))

    def counts_anew(self, measure: Measure, is_live: bool = False) -> bool:
        """Whether the program counts its steps anew after the warm-up, as some do in each epoch.

        While it goes on, as many marks have to follow as came before: another process may only have begun later.
        """
        if (counted := self.counted(measure)) is None:
            return False
        return counted[1] < len(self.marks) or self._begins_anew(max(len(self.marks), SETTLED) if is_live else 1)

    def window(self, measure: Measure) -> tuple[int, int] | None:
        """Return the marks at which the window begins and ends; None where it has not begun."""
        if (counted := self.counted(measure)) is None:
            return None
        steps, minutes, begin = measure.steps, measure.minutes, self.marks[counted[0]]
        ends = [
            index
            for index in range(*counted)
            if (steps is None or self.marks[index].step - begin.step <= steps)
            and (minutes is None or self.marks[index].clock_s - begin.clock_s <= 60 * minutes)
        ]
        return counted[0], ends[-1]

    def is_over(self, measure: Measure) -> bool:
        """Whether the window has all of its steps or minutes."""
        if (measure.steps, measure.minutes) == (None, None) or (counted := self.counted(measure)) is None:
            return False
        begin, last = self.marks[counted[0]], self.marks[counted[1] - 1]
        if measure.steps is not None:
            return last.step - begin.step >= measure.steps
        return last.clock_s - begin.clock_s >= 60 * (measure.minutes or 0.0)


@dataclass
class Traces:
    """All traces of a run in the folder of its metrics."""

    folder: Path
    earlier: Earlier = field(default_factory=dict)
    known: dict[Path, Trace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with the earlier attempts."""
        for name, marks in self.earlier.items():
            self.known[self.folder / name] = Trace(self.folder / name, marks)

    def refresh(self) -> None:
        """Read what is new."""
        for file in self.folder.glob("*.jsonl"):
            if file not in self.known:
                begun = self.known.pop(self.folder / Trace(file).name, None)
                self.known[file] = Trace(file, begun.marks if begun else [])
            self.known[file].refresh()

    def of(self, source: str) -> list[Trace]:
        """Return the traces of one source that have a step, by rank."""
        traces = [trace for file, trace in self.known.items() if file.name.startswith(source) and trace.marks]
        return sorted(traces, key=lambda trace: trace.rank)

    @property
    def source(self) -> str | None:
        """The source that counts; None where no step was seen."""
        return next((source for source in SOURCES if self.of(source)), None)

    def is_over(self, measure: Measure) -> bool:
        """Whether every trace has its whole window, or will never have it."""
        traces = self.of(self.source or "")
        return bool(traces) and all(
            trace.is_over(measure) or trace.counts_anew(measure, is_live=True) for trace in traces
        )


@dataclass(frozen=True)
class Window:
    """A trace's window."""

    trace: Trace
    begin: int
    end: int

    @property
    def marks(self) -> Sequence[Mark]:
        """The marks of the window; the first one is the end of the step before it."""
        return self.trace.marks[self.begin : self.end + 1]

    @property
    def steps(self) -> int:
        """Steps in the window."""
        return self.marks[-1].step - self.marks[0].step

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.marks[-1].clock_s - self.marks[0].clock_s

    def total(self, name: str) -> float | None:
        """Samples, bytes or flops in the window; None where one of its marks has none."""
        values = [getattr(mark, name) for mark in self.marks[1:]]
        return None if None in values or not any(values) else float(sum(value or 0.0 for value in values))

    @property
    def step_intervals(self) -> np.ndarray:
        """float64 [marks - 1]: seconds per step between neighbours."""
        clocks, steps = (np.array([getattr(mark, name) for mark in self.marks]) for name in ("clock_s", "step"))
        return np.diff(clocks) / np.maximum(1, np.diff(steps))


def windows(traces: Sequence[Trace], measure: Measure) -> list[Window]:
    """Return the window of each trace that has one with a step in it."""
    pairs = [(trace, trace.window(measure)) for trace in traces]
    made = [Window(trace, *window) for trace, window in pairs if window is not None]
    return [window for window in made if window.steps > 0]
