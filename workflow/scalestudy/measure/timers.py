"""When each phase of each step ended, on one rank."""

from __future__ import annotations

import time

import numpy as np
import torch

PHASES = ("data", "compute", "exchange", "optimiser")


class StepTimer:
    """Marks the ends of the phases of each step: data, compute, exchange, optimiser.

    On a GPU the marks are events on its stream, read when all is over, so that timing does not wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.rows: list[list[float | torch.cuda.Event]] = []
        self.row: list[float | torch.cuda.Event] = []
        self.earlier = np.zeros((0, len(PHASES) + 1))
        """What `seconds` returned when the run was stopped; the gap since then is not counted."""

    def begin(self) -> None:
        """A step begins: the wait for its batch."""
        self.row = []
        self.mark()

    def mark(self) -> None:
        """A phase has ended."""
        if self.on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.row.append(event)
        else:
            self.row.append(time.perf_counter())

    def end(self) -> None:
        """The step's last phase has ended."""
        self.mark()
        self.rows.append(self.row)

    def seconds(self) -> np.ndarray:
        """float64 [steps, 5]: begin and the four ends, seconds since the first begin of the run."""
        if not self.rows:
            return self.earlier
        since = self._since_resumed()
        return np.concatenate([self.earlier, since + self.earlier[-1, -1]]) if len(self.earlier) else since

    def _since_resumed(self) -> np.ndarray:
        if not self.on_gpu:
            marks = np.array(self.rows, dtype=np.float64)
            return marks - marks[0, 0]
        torch.cuda.synchronize()
        first = self.rows[0][0]
        assert isinstance(first, torch.cuda.Event)
        return np.array([[first.elapsed_time(event) / 1000 for event in row] for row in self.rows])  # type: ignore[arg-type]
