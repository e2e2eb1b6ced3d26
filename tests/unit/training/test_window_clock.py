"""When a window began and ended on the clock by which a device's power is sampled."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalestudy.measure.timers import PHASES, StepTimer
from scalestudy.strategies.base import World
from scalestudy.training.recorder import Recorder
from scalestudy.training.schedule import Schedule
from tests.unit.training.test_trainer import job


class EventOfASlowDevice:
    """A stand-in for torch.cuda.Event: each step is done 10 ms after the one before, however early it is queued."""

    queued = 0

    def record(self) -> None:
        EventOfASlowDevice.queued += 1
        self.at_s = 0.010 * (EventOfASlowDevice.queued // (len(PHASES) + 1))

    def query(self) -> bool:
        return time.perf_counter() - EventOfASlowDevice.began_s >= self.at_s

    def synchronize(self) -> None:
        time.sleep(max(0.0, EventOfASlowDevice.began_s + self.at_s - time.perf_counter()))

    def elapsed_time(self, other: Any) -> float:
        return 1000.0 * (other.at_s - self.at_s)

    began_s = 0.0


def test_the_window_of_a_device_that_is_behind_its_host_is_that_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now_s.append(now_s.pop() + seconds))
    of = job(tmp_path, measure={"warmup_steps": 10, "steps": 20})
    recorder = Recorder(of, World(0, 1, 0, torch.device("cpu"), 1, None), Schedule(of.spec, 8))
    EventOfASlowDevice.queued, EventOfASlowDevice.began_s = 0, time.perf_counter()
    recorder.timer = StepTimer(torch.device("cpu"), EventOfASlowDevice)
    recorder.begin()
    for step in range(30):  # all are queued at once
        recorder.timer.begin()
        recorder.timer.end()
        for _ in range(len(PHASES) - 1):
            EventOfASlowDevice.queued += 1
        recorder.step(torch.zeros(1), 4)
        recorder.begin_window(step + 1)
    loader: Any = SimpleNamespace(slow_decode=0)
    faults: Any = SimpleNamespace(fired={}, killed_before=0)
    recorder.account(loader, faults)
    began, ended = (clock - EventOfASlowDevice.began_s for clock in recorder.report.window_clock)
    assert began == pytest.approx(0.1, abs=1e-6)
    assert ended == pytest.approx(0.3, abs=1e-6)
