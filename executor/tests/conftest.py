"""A batch system for the tests: the one of this host where MULTINODE_TEST_SCHEDULER names it, else a stand-in."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from running import REAL, STANDIN

DRIVERS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """A driver that runs in the tests' own process takes over signals: later tests get them back."""
    before = {number: signal.getsignal(number) for number in DRIVERS_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch system whose commands are in PATH."""
    for name in ("MULTINODE_FOLDER", "MULTINODE_BUDGET_GPU_HOURS"):
        monkeypatch.delenv(name, raising=False)
    if not REAL:
        monkeypatch.setenv("STANDIN", str(tmp_path_factory.mktemp("standin")))
        monkeypatch.setenv("PATH", f"{STANDIN}{os.pathsep}{os.environ['PATH']}")
