"""Times of phases: on a CPU, and with events as a GPU has them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from scalestudy.measure.timers import PHASES, StepTimer

CPU = torch.device("cpu")
DAY_S = 86_400.0


class StandInForCudaEvent:
    """A stand-in for torch.cuda.Event on a made-up clock; as the real one, it gives float32 milliseconds."""

    clock_s = 0.0
    device_s = float("inf")
    """How far the device has come."""
    alive: weakref.WeakSet[StandInForCudaEvent] = weakref.WeakSet()

    def record(self) -> None:
        self.at_s = StandInForCudaEvent.clock_s
        StandInForCudaEvent.alive.add(self)

    def query(self) -> bool:
        return self.at_s <= StandInForCudaEvent.device_s

    def synchronize(self) -> None:
        StandInForCudaEvent.device_s = max(StandInForCudaEvent.device_s, self.at_s)

    def elapsed_time(self, other: StandInForCudaEvent) -> float:
        assert self.query() and other.query(), "read before the device reached it"
        return float(np.float32((other.at_s - self.at_s) * 1000))


@pytest.fixture
def event() -> type[StandInForCudaEvent]:
    StandInForCudaEvent.clock_s, StandInForCudaEvent.device_s = 0.0, float("inf")
    StandInForCudaEvent.alive.clear()
    return StandInForCudaEvent


def make_steps(timer: StepTimer, event: Any, count: int, phase_s: float) -> None:
    for _ in range(count):
        timer.begin()
        for phase in PHASES[:-1]:
            event.clock_s += phase_s
            timer.mark(phase)
        event.clock_s += phase_s
        timer.end()


def test_a_phase_of_a_tenth_of_a_millisecond_is_seen_after_a_day(event: Any) -> None:
    timer, first = StepTimer(CPU, event), event()
    first.record()
    make_steps(timer, event, 1, 0.0001)
    event.clock_s = DAY_S
    make_steps(timer, event, 3, 0.0001)
    assert np.diff(timer.seconds()[1:], axis=1) == pytest.approx(0.0001, rel=1e-3)
    one, other = event(), event()
    one.at_s, other.at_s = DAY_S, DAY_S + 0.0001
    # From the run's first event both would lie at the same float32.
    assert first.elapsed_time(other) == first.elapsed_time(one)


def test_events_that_the_device_has_not_reached_are_left_until_it_has(event: Any) -> None:
    timer = StepTimer(CPU, event)
    event.device_s = 0.5
    make_steps(timer, event, 250, 0.001)  # 6 ms each: 83 of them within half a second
    assert timer.seconds().shape == (250, 7)
    assert np.diff(timer.seconds(), axis=1) == pytest.approx(0.001, rel=1e-3)


def test_waiting_ends_when_the_device_has_done_what_was_queued_and_says_how_long_after_the_last_mark(
    event: Any,
) -> None:
    timer = StepTimer(CPU, event)
    assert timer.wait() == 0.0
    event.device_s = 0.0
    make_steps(timer, event, 3, 0.001)
    event.clock_s += 0.25  # an evaluation
    assert timer.wait() == pytest.approx(0.25)
    assert event.device_s == pytest.approx(0.268)
    assert (timer.steps, timer.on_gpu) == (3, True)
    assert (StepTimer(CPU).wait(), StepTimer(torch.device("cuda")).on_gpu) == (0.0, True)
