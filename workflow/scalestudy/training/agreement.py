"""Between two steps: whether all ranks stop, write a checkpoint, or end the window. They agree about once a second."""

from __future__ import annotations

import datetime
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from scalestudy.spec.run import Checkpoint
from scalestudy.strategies.base import World
from scalestudy.training import stopping
from scalestudy.training.job import Job

EVERY_S = 1.0
"""Ranks ask each other about so often: seldom enough to cost nothing, often enough to stop in time."""
GROWTH = 4
"""The number of steps until the next question grows by this factor at most: the first steps are slow ones."""
LEAST_MARGIN_S = 5.0
SAFETY = 2.0
ASSUMED_BYTES_PER_S = 50e6
"""How fast a checkpoint is written before one has been timed: a slow network disk."""
NONE, STOP_FILE, DEADLINE, SIGNAL = 0, 1, 2, 100
"""Why to stop, as ranks tell each other; SIGNAL plus its number."""


@dataclass(frozen=True)
class Answer:
    """What all ranks agreed on after a step."""

    stop: str = ""
    """Why to stop; empty: go on."""
    checkpoint: bool = False
    """The minutes between two checkpoints have passed."""
    window_over: bool = False
    """The window's minutes have passed for a rank."""


class Agreement:
    """One rank's part in it. The others' wishes come by one small all-reduce over the host."""

    def __init__(self, job: Job, world: World, state_bytes: int) -> None:
        self.job, self.world = job, world
        self.spec: Checkpoint = job.spec.checkpoint
        self.checkpoint_s = state_bytes / ASSUMED_BYTES_PER_S
        """What a checkpoint is expected to take."""
        self.interval = 1
        self.last_done, self.last_s = 0, time.perf_counter()
        self.next = 1
        self.written_s = self.last_s

    def begin(self, done: int) -> None:
        """The steps begin, after `done` of an earlier link."""
        self.last_done, self.next = done, done + 1
        self.last_s = self.written_s = time.perf_counter()

    def due(self, done: int) -> bool:
        """Whether it is time to ask; the same on every rank."""
        return done >= self.next

    def checkpoint_due(self, done: int) -> bool:
        """Whether the spec wants a checkpoint after so many steps; no question, as all count them."""
        every = self.spec.every_steps
        return every is not None and done % every == 0

    def ask(self, done: int, window_end: float | None, ahead_s: float = 0.0) -> Answer:
        """What all ranks do after `done` steps; `ahead_s` is what is due next and cannot be interrupted."""
        now = time.perf_counter()
        step_s = (now - self.last_s) / max(1, done - self.last_done)
        steps = min(GROWTH * self.interval, max(1, int(EVERY_S / max(step_s, 1e-6))))
        minutes = self.spec.every_minutes
        wishes = torch.tensor([
            float(self._reason(step_s * steps + ahead_s)),
            float(minutes is not None and now - self.written_s >= 60 * minutes),
            float(window_end is not None and now >= window_end),
            float(-steps),
        ], dtype=torch.float64)  # fmt: skip
        group = self.world.control or self.world.workers
        if group is not None and self.world.ranks > 1:
            dist.all_reduce(wishes, dist.ReduceOp.MAX, group=group)
        code, write, over, fewest = (int(wish) for wish in wishes.tolist())
        self.interval = -fewest
        self.last_done, self.last_s, self.next = done, now, done + self.interval
        return Answer(self._sentence(code), bool(write), bool(over))

    def written(self, seconds: float) -> None:
        """A checkpoint took so long."""
        self.checkpoint_s = seconds
        self.written_s = time.perf_counter()
        self.paused(seconds)

    def paused(self, seconds: float) -> None:
        """Something else than steps was done for so long: that is no step's time."""
        self.last_s += seconds

    def _reason(self, until_next_s: float) -> int:
        """This rank's wish to stop; files and the clock are rank 0's to watch."""
        if stopping.received:
            return SIGNAL + stopping.received[0]
        if self.world.rank > 0:
            return NONE
        request = self.job.folder / stopping.REQUEST
        if request.exists():
            return SIGNAL + signal.Signals[request.read_text(encoding="utf-8").strip() or "SIGTERM"]
        if self.job.beside is not None and (self.job.beside / stopping.STOP_FILE).exists():
            return STOP_FILE
        margin_s = LEAST_MARGIN_S + SAFETY * (self.checkpoint_s + until_next_s)
        if self.job.deadline is not None and time.time() + margin_s >= self.job.deadline:
            return DEADLINE
        return NONE

    def _sentence(self, code: int) -> str:
        if code == NONE:
            return ""
        if code == STOP_FILE:
            return "because the file `stop` lay beside the result"
        if code == DEADLINE:
            at = datetime.datetime.fromtimestamp(self.job.deadline or 0.0).isoformat(timespec="seconds")
            return f"because the job ends at {at}"
        return f"because of signal {signal.Signals(code - SIGNAL).name}"


def say_agreed(folder: Path) -> None:
    """Tell the process that started the ranks that they have agreed to stop, and now write."""
    (folder / stopping.AGREED).touch()
