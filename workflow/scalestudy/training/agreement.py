"""Between two steps: whether all ranks stop, or end the window. They agree about once a second.

Synchronous ranks meet after an agreed number of steps. Ranks that train each at their own pace (asynchronous servers)
are not held up: they meet where they all come anyway, at evaluations, checkpoints and the end, or when rank 0 has
called a meeting. Then all continue to the step of the one that is farthest, so that they end at the same step.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalestudy.spec.layout import STOP_FILE
from scalestudy.strategies.base import World
from scalestudy.training import control_files
from scalestudy.training.job import Job

EVERY_S = 1.0
"""About how often ranks ask each other: seldom enough to cost nothing, often enough to stop in time."""
GROWTH = 4
"""The number of steps until the next question grows by this factor at most: the first steps are slow ones."""
MIN_MARGIN_S = 5.0
SAFETY = 2.0
ASSUMED_BYTES_PER_S = 50e6
"""How fast a checkpoint is written before one has been timed: a slow network disk."""
CALL = "meet"
"""In a job's scratch folder: rank 0 calls ranks that train at their own pace to a meeting."""
WindowOver = Callable[[], bool]
"""Whether the minutes of the window have passed, as far as a rank knows."""


@dataclass(frozen=True)
class Agreed:
    """The agreement of all ranks."""

    step: int
    """After so many steps."""
    stop: str = ""
    """Why to stop; empty: continue."""
    window_over: bool = False
    """The minutes of the window have passed for a rank."""


class Agreement:
    """One rank's part in it. Requests of the others come by one small all-reduce over the host."""

    def __init__(self, job: Job, world: World, synchronous: bool, state_bytes: int) -> None:
        self.job, self.world, self.synchronous = job, world, synchronous
        self.checkpoint_s = state_bytes / ASSUMED_BYTES_PER_S
        """The time that a checkpoint is expected to take."""
        self.interval = 1
        self.begin(0)
        self.ahead_of_us: Agreed | None = None
        """Agreed on, for a step that this rank has yet to reach."""

    def begin(self, done: int) -> None:
        """The steps begin, after `done` of an earlier attempt."""
        self.last_done, self.next = done, done + 1
        self.last_s = self.looked_s = time.perf_counter()

    def after(self, done: int, meeting: bool, window_over: WindowOver, next_s: float) -> Agreed | None:
        """The next action of all ranks, after `done` steps; None: they did not meet.

        `meeting`: all ranks come here after so many steps. `next_s` is the length of the next uninterruptible work.
        """
        answer = self.ahead_of_us
        if answer is None:
            # Synchronous ranks all count to the next meeting.
            if not (meeting or (done >= self.next if self.synchronous else self._called(window_over))):
                return None
            answer = self._ask(done, window_over, next_s)
        self.ahead_of_us = answer if answer.step > done else None
        return None if self.ahead_of_us else answer

    def checkpoint_due(self, done: int) -> bool:
        """Whether the spec asks for a checkpoint after so many steps; all ranks count them, so none has to ask."""
        every = self.job.spec.checkpoint.every_steps
        return every is not None and done % every == 0

    def written(self, seconds: float) -> None:
        """A checkpoint took so long."""
        self.checkpoint_s = seconds
        self.paused(seconds)

    def paused(self, seconds: float) -> None:
        """Something other than steps was done for so long: it counts for no step."""
        self.last_s += seconds

    def _called(self, window_over: WindowOver) -> bool:
        """Whether rank 0 has called a meeting. Rank 0 checks whether there is a reason to call one, the others whether it has."""
        now = time.perf_counter()
        if now - self.looked_s < EVERY_S:
            return False
        since_s, self.looked_s, call = now - self.looked_s, now, self.job.folder / CALL
        if self.world.rank == 0 and (self._reason(since_s) or window_over()):
            call.touch()
        return call.exists()

    def _ask(self, done: int, window_over: WindowOver, next_s: float) -> Agreed:
        """Meet the other ranks, and agree."""
        now = time.perf_counter()
        step_s = (now - self.last_s) / max(1, done - self.last_done)
        steps = min(GROWTH * self.interval, max(1, int(EVERY_S / max(step_s, 1e-6))))
        reason = [self._reason(step_s * steps + next_s)]
        requests = torch.tensor([bool(reason[0]), window_over(), -steps, done], dtype=torch.float64)
        group = (self.world.control or self.world.workers) if self.world.ranks > 1 else None
        if group is not None:
            dist.all_reduce(requests, dist.ReduceOp.MAX, group=group)
        if not self.synchronous and self.world.rank == 0:
            # The call is answered; a rank that still sees it meets once more.
            (self.job.folder / CALL).unlink(missing_ok=True)
        stop, over, fewest, farthest = (int(request) for request in requests.tolist())
        if stop and group is not None:
            dist.broadcast_object_list(reason, 0, group=group)
        self.interval = -fewest
        self.last_done, self.last_s, self.next = done, now, done + self.interval
        return Agreed(farthest, reason[0], bool(over))

    def _reason(self, until_next_s: float) -> str:
        """Why to stop, "" to continue: rank 0 watches the clock and the files of requests. Ranks ignore signals."""
        if self.world.rank > 0:
            return ""
        request = self.job.folder / control_files.REQUEST
        if request.exists():
            why = request.read_text(encoding="utf-8").strip()
            gone = why == control_files.DRIVER_IS_GONE
            return "because its driver is gone" if gone else f"because of signal {why or 'SIGTERM'}"
        if (self.job.run_folder / STOP_FILE).exists():
            return "because of the file `stop` in the run's folder"
        margin_s = MIN_MARGIN_S + SAFETY * (self.checkpoint_s + until_next_s)
        if self.job.deadline is not None and time.time() + margin_s >= self.job.deadline:
            at = datetime.datetime.fromtimestamp(self.job.deadline).isoformat(timespec="seconds")
            return f"because the job ends at {at}"
        return ""
