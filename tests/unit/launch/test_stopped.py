"""A stopped process that others wait for is named, in place of silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scalestudy.launch import stopped, warm
from scalestudy.launch.stopped import StopWatch
from tests.integration.processes import wait_until

LAUNCHER = """
import time
from scalestudy.launch import stopped
from scalestudy.launch.reaper import reaper
stopped.LOOK_S, stopped.PATIENCE_S = 0.1, 0.3
with reaper():
    print("runs", flush=True)
    time.sleep(60)
"""
PARENT = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
time.sleep(60)
"""


def test_a_process_is_named_once_for_each_time_that_it_is_stopped(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped, "PATIENCE_S", 0)
    with subprocess.Popen(["sleep", "60"]) as process:
        watch = StopWatch(process.pid, "the launcher")
        watch.look()
        assert capfd.readouterr().err == ""
        for _ in range(2):
            process.send_signal(signal.SIGSTOP)
            assert wait_until(lambda: stopped.is_stopped(process.pid), 10)
            watch.look()
            watch.look()
            assert capfd.readouterr().err.count(f"the launcher (process {process.pid}) is stopped") == 1
            process.send_signal(signal.SIGCONT)
            assert wait_until(lambda: not stopped.is_stopped(process.pid), 10)
            watch.look()
        process.kill()


def test_a_stopped_launcher_is_named_by_the_process_that_cleans_up_after_it(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with (
        open(file, "w") as said,
        subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, stderr=said, text=True) as launcher,
    ):
        assert launcher.stdout is not None and launcher.stdout.readline() == "runs\n"
        launcher.send_signal(signal.SIGSTOP)
        try:
            assert wait_until(lambda: f"kill -CONT {launcher.pid}" in file.read_text(), 20)
        finally:
            launcher.kill()


@pytest.mark.slow
def test_a_client_names_the_warm_parent_that_is_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped, "LOOK_S", 0.1)
    monkeypatch.setattr(stopped, "PATIENCE_S", 0.2)
    address = tmp_path / "parent.sock"
    monkeypatch.setattr(warm, "_address", lambda: address)
    monkeypatch.setattr(warm, "_is_child", False)
    with subprocess.Popen([sys.executable, "-c", PARENT, str(address)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "listens\n"
        os.kill(parent.pid, signal.SIGSTOP)
        end = threading.Timer(2, parent.kill)
        end.start()
        assert warm.call(["list"]) == 1
        end.join()
    assert f"the warm parent process (process {parent.pid}) is stopped" in capfd.readouterr().err
