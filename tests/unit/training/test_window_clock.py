"""When a window began and ended on the clock by which a device's power is sampled."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalestudy.measure.timers import StepTimer
from scalestudy.strategies.base import World
from scalestudy.training.recorder import Recorder
from scalestudy.training.schedule import Schedule
from tests.unit.measure.test_timers import CPU, event, make_steps
from tests.unit.training.test_trainer import job

__all__ = ["event"]


def test_the_window_of_a_device_that_is_behind_its_host_is_that_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: Any
) -> None:
    event.device_s = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: event.device_s)  # the host waits for nothing but the device
    of = job(tmp_path, measure={"warmup_steps": 10, "steps": 20})
    recorder = Recorder(of, World(0, 1, 0, CPU, 1, None), Schedule(of.spec, 8))
    recorder.timer = StepTimer(CPU, event)
    recorder.begin()
    for step in range(30):  # all are queued at once
        make_steps(recorder.timer, event, 1, 0.01 / 6)
        recorder.step(torch.zeros(1), 4)
        recorder.begin_window(step + 1)
    loader: Any = SimpleNamespace(slow_decode=0)
    faults: Any = SimpleNamespace(fired={}, killed_before=0)
    recorder.account(loader, faults)
    assert recorder.report.window_clock == pytest.approx((0.1, 0.3), abs=1e-6)
