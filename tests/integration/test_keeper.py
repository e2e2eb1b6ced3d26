"""What a supervisor leaves behind when it is killed: nothing, with any build of Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.integration.processes import wait_until

SUPERVISOR = """\
import os, signal, subprocess, sys, time
from pathlib import Path

if hasattr(os, "pidfd_open"):
    del os.pidfd_open  # as in builds of Python against an old C library

from scalestudy.launch.keeper import keeper

with keeper() as held, held.scratch(Path(sys.argv[1])) as group:
    if (forked := os.fork()) == 0:  # a rank
        os.setpgid(0, group)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    executed = subprocess.Popen(command, process_group=group)  # a loader's worker
    print(group, forked, executed.pid, flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by(folder: Path, end: str) -> tuple[int, list[psutil.Process]]:
    """A supervisor's exit status, and its processes."""
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder), end], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        numbers = supervisor.stdout.readline().split()
        processes = [psutil.Process(int(number)) for number in numbers if psutil.pid_exists(int(number))]
        return supervisor.wait(30), processes


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_killed_supervisors_processes_and_folder_are_gone_without_pidfd_open(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    status, processes = left_by(folder, "killed")
    assert status == -9
    assert wait_until(lambda: not running(processes), 10)
    assert wait_until(lambda: not folder.exists(), 10)


def test_a_supervisor_that_ends_takes_its_processes_along(tmp_path: Path) -> None:
    status, processes = left_by(tmp_path, "ends")
    assert status == 0
    assert wait_until(lambda: not running(processes), 10)
    assert tmp_path.exists()
