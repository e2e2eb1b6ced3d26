"""When each phase of each step ended, on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

PHASES = ("data", "convert", "forward", "backward", "exchange", "optimiser")
MARKS = len(PHASES) + 1
"""Of a step: its start, and the end of each phase."""
COMPUTE, WAIT, EXCHANGE = "computes", "waits for rank", "exchange"
TRACED = ("batch made", "waits for data", "convert, copy", COMPUTE, WAIT, EXCHANGE)
"""Rows of a traced rank: its workers make batches; it waits for one, converts or copies it, and computes; it waits for the
last rank to enter the exchange, and exchanges."""
STEP = "step"
"""The row of its steps; and the beginning of their spans, `step 0` the first traced one."""
DRAIN_EVERY = 100
"""Steps between two conversions of marks into seconds: few enough that no more GPU events than these are alive."""


class StepTimer:
    """Marks the ends of the phases of each step.

    On a GPU the marks are events on its stream. They are read some steps later, when they have been reached, so that
    timing never waits for the device. The driver gives the time between two events as float32 milliseconds
    (`cudaEventElapsedTime`); from the run's first event its resolution would be 1 ms after 2.3 hours and 8 ms after a
    day. So each mark is timed from the one before it, and the differences are summed in float64.
    """

    def __init__(self, device: torch.device, new_event: Callable[[], Any] | None = None) -> None:
        """`new_event` makes an event as `torch.cuda.Event` is one; unset: that one on a GPU, and none elsewhere."""
        if new_event is None and device.type == "cuda":
            import torch

            new_event = partial(torch.cuda.Event, enable_timing=True)
        self._now: Callable[[], Any] = time.perf_counter if new_event is None else partial(_recorded, new_event)
        self.on_gpu = new_event is not None
        """Whether marks are events of a GPU, which come later than they are queued."""
        self._row: list[Any] = []
        self._rows: list[list[Any]] = []
        """Steps whose marks are not yet in seconds."""
        self._last: Any = None
        """The last mark that is in seconds."""
        self._last_s = 0.0
        self._drained: list[NDArray[np.float64]] = []
        self.earlier = np.zeros((0, MARKS))
        """What `seconds` returned when the run was stopped; the gap since then is not counted."""

    @property
    def steps(self) -> int:
        """Steps that were timed, those before a stop included."""
        return len(self.earlier) + sum(map(len, self._drained)) + len(self._rows)

    def wait(self) -> float:
        """Wait until a GPU has done all that was queued; seconds from the last mark to then, 0 on a CPU."""
        if not self.on_gpu or (self._last is None and not self._rows):
            return 0.0
        end = self._now()
        end.synchronize()
        self._drain()
        return _between(self._last, end)

    def begin(self) -> None:
        """A step begins: the wait for its batch."""
        self._row = [self._now()] + [None] * len(PHASES)

    def mark(self, phase: str) -> None:
        """A phase of the step that was begun has ended."""
        self._row[PHASES.index(phase) + 1] = self._now()

    def end(self) -> None:
        """The step's last phase has ended. A phase that was not marked ends with the next one that was."""
        self._row[-1] = self._now()
        for place in range(len(PHASES) - 1, 0, -1):
            if self._row[place] is None:
                self._row[place] = self._row[place + 1]
        self._rows.append(self._row)
        if len(self._rows) >= DRAIN_EVERY:
            self._drain()

    def seconds(self) -> NDArray[np.float64]:
        """float64 [steps, 7]: start and the ends of all phases, seconds since the first start of the run.

        Waits for the device.
        """
        if self._rows and self.on_gpu:
            self._rows[-1][-1].synchronize()
        self._drain()
        if len(self._drained) > 1:
            self._drained = [np.concatenate(self._drained)]
        since = self._drained[0] if self._drained else np.zeros((0, MARKS))
        if not len(self.earlier):
            return since
        return np.concatenate([self.earlier, since + self.earlier[-1, -1]]) if len(since) else self.earlier

    def _drain(self) -> None:
        """Turn marks that have been reached into seconds. Events of one stream are reached in order."""
        count = len(self._rows)
        while self.on_gpu and count and not self._rows[count - 1][-1].query():
            count -= 1
        rows, self._rows = self._rows[:count], self._rows[count:]
        if not rows:
            return
        marks = [mark for row in rows for mark in row]
        before = [marks[0] if self._last is None else self._last, *marks[:-1]]
        gaps = [_between(one, other) if self.on_gpu else other - one for one, other in zip(before, marks, strict=True)]
        ends = self._last_s + np.cumsum(np.array(gaps, dtype=np.float64))
        self._last, self._last_s = marks[-1], float(ends[-1])
        self._drained.append(ends.reshape(len(rows), MARKS))


def _recorded(new_event: Callable[[], Any]) -> Any:
    event = new_event()
    event.record()
    return event


def _between(one: Any, other: Any) -> float:
    """Seconds from one event to another, which may be the same."""
    return 0.0 if one is other else one.elapsed_time(other) / 1000
