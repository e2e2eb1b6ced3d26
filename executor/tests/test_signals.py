"""Signals that end a driver leave its jobs running."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.executor import DriverStopped, Executor

NUMBERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)


@pytest.fixture
def default_handlers() -> Iterator[None]:
    """As a new process has them; put back at the end."""
    before = {number: signal.getsignal(number) for number in (*NUMBERS, signal.SIGINT)}
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_driver_that_is_told_to_end_says_that_its_jobs_continue_and_cancels_none(
    default_handlers: None, number: signal.Signals
) -> None:
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
