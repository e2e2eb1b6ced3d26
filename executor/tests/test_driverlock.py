"""One driver has a folder: as long as its process lives, and elsewhere as long as it was heard of."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.driverlock import DriverLock, Owner, Taken
from test_monitor import StillClock

HOLD = """
import sys
from pathlib import Path
from snakemake_executor_plugin_multinode.driverlock import DriverLock
DriverLock(Path(sys.argv[1])).take()
print("held", flush=True)
sys.stdin.readline()
"""


def noted(folder: Path, silent_s: float = 0.0) -> None:
    """A note of a driver on another host."""
    (folder / "driver.json").write_text(json.dumps({"host": "elsewhere", "pid": 1, "boot": "x", "token": "y"}))
    os.utime(folder / "driver.json", (time.time() - silent_s,) * 2)


def test_a_living_driver_keeps_its_folder_also_while_it_is_stopped_and_a_dead_one_does_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "held\n"
        driver.send_signal(signal.SIGSTOP)
        os.utime(tmp_path / "driver.json", (time.time() - 3600,) * 2)
        try:
            with pytest.raises(Taken, match=f"another driver works in this folder: process {driver.pid} on .*kill"):
                DriverLock(tmp_path).take()
            (tmp_path / "driver.json").write_text("")  # it has not noted itself yet
            with pytest.raises(Taken, match="another driver has begun to work in this folder"):
                DriverLock(tmp_path).take()
        finally:
            driver.kill()
    lock = DriverLock(tmp_path)
    before = lock.take()
    assert before is None
    assert lock.owner() == lock.me
    lock.release()
    assert DriverLock(tmp_path).take() is None


def test_a_driver_elsewhere_is_respected_until_it_was_silent_for_ten_minutes(tmp_path: Path) -> None:
    noted(tmp_path, 60)
    with pytest.raises(
        Taken, match=r"process 1 on elsewhere, which was heard of 60 s ago\. If it is dead, start again in 10"
    ):
        DriverLock(tmp_path).take()
    noted(tmp_path, 700)
    assert DriverLock(tmp_path).take() == Owner("elsewhere", 1, "x", "y")


def test_where_a_file_system_has_no_flocks_the_note_alone_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    DriverLock(tmp_path).take()
    with pytest.raises(Taken, match=f"process {os.getpid()} on "):
        DriverLock(tmp_path).take()
    os.utime(tmp_path / "driver.json", (time.time() - 700,) * 2)
    assert DriverLock(tmp_path).take() is not None


def test_a_driver_ends_where_another_has_its_lock_and_not_where_the_lock_cannot_be_found(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    clock = StillClock()
    lock = DriverLock(folder, clock.now_s)
    lock.take()
    folder.rename(tmp_path / "moved")
    clock.s += 30
    assert lock.keep()
    folder.mkdir()
    noted(folder)
    assert lock.keep()  # it is looked at from time to time
    clock.s += 30
    assert not lock.keep()
