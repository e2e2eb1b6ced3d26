"""Signals that end a driver leave its jobs running."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.executor import DriverStopped, Executor

NUMBERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_driver_that_is_told_to_end_says_that_its_jobs_continue_and_cancels_none(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)  # as a new process has it; put back by conftest.py
    told: list[Exception] = []
    heard = threading.Event()

    def end_with(error: Exception) -> None:
        told.append(error)
        heard.set()

    executor: Any = Executor.__new__(Executor)
    executor.workflow = SimpleNamespace(scheduler=SimpleNamespace(executor_error_callback=end_with))
    executor.monitor, executor.interruptible = SimpleNamespace(submitted_jobs=lambda: "2 jobs"), False
    executor._listen()
    assert signal.getsignal(number) == executor._leave
    os.kill(os.getpid(), number)
    assert heard.wait(5)
    (error,) = told
    assert isinstance(error, DriverStopped)
    assert (
        str(error)
        == f"{number.name}: this driver exits and leaves 2 jobs with the scheduler. The same command adopts them."
    )
    assert signal.getsignal(signal.SIGXCPU) is signal.SIG_IGN  # the kernel sends it again each second
