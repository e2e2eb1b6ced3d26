"""Whose a lock of a folder is where hosts share a name, and where a file system has no hard links."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.driverlock import DriverLock, Owner, Taken
from test_monitor import StillClock


def held_by(folder: Path, owner: Owner) -> None:
    (folder / "driver.json").write_text(json.dumps(asdict(owner)))


def gone(folder: Path) -> Owner:
    """A driver of this host whose process is not here."""
    return replace(DriverLock(folder).me, pid=2**22 + 1, token="other")


def test_a_driver_that_is_gone_from_this_host_holds_up_nobody(tmp_path: Path) -> None:
    held_by(tmp_path, gone(tmp_path))
    assert DriverLock(tmp_path).take() == gone(tmp_path)


@pytest.mark.parametrize(
    "elsewhere", [{"started": "another-boot:5"}, {"space": "pid:[1]"}], ids=["boot", "namespace of process ids"]
)
def test_a_process_that_cannot_be_seen_from_here_is_not_taken_for_dead(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    held_by(tmp_path, replace(gone(tmp_path), **elsewhere))
    with pytest.raises(Taken, match=r"which was heard of 0 s ago\. If it is dead, start again in 10 minutes"):
        DriverLock(tmp_path).take()
    os.utime(tmp_path / "driver.json", (time.time() - 700, time.time() - 700))
    assert DriverLock(tmp_path).take() is not None


HOLD = """
import sys
from pathlib import Path
from snakemake_executor_plugin_multinode.driverlock import DriverLock
DriverLock(Path(sys.argv[1])).take()
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("space", ["", "pid:[1]"], ids=["here", "in another container"])
def test_nobody_takes_over_from_a_driver_that_was_stopped_for_a_minute(space: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "held\n"
        driver.send_signal(signal.SIGSTOP)
        owner = DriverLock(tmp_path).owner()
        assert owner is not None and owner.pid == driver.pid
        held_by(tmp_path, replace(owner, space=space or owner.space))
        os.utime(tmp_path / "driver.json", (time.time() - 60, time.time() - 60))
        with pytest.raises(Taken, match=f"process {driver.pid}"):
            DriverLock(tmp_path).take()
        driver.kill()


def test_a_living_driver_keeps_its_folder_and_a_dead_one_does_not(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time\nfrom snakemake_executor_plugin_multinode.driverlock import DriverLock\n"
        "DriverLock(pathlib.Path(sys.argv[1])).take(); print('taken', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "taken\n"
    with pytest.raises(Taken, match=f"another driver works in this folder: process {other.pid} on "):
        DriverLock(tmp_path).take()
    other.kill()
    other.wait()
    lock = DriverLock(tmp_path)
    before = lock.take()
    assert before is not None
    assert before.pid == other.pid
    lock.release()
    assert not list(tmp_path.iterdir())


def test_a_lock_of_another_host_is_respected_until_it_was_silent_for_ten_minutes(tmp_path: Path) -> None:
    other = {"host": "elsewhere", "pid": 1, "started": "x", "token": "y"}
    (tmp_path / "driver.json").write_text(json.dumps(other))
    with pytest.raises(Taken, match="process 1 on elsewhere, which was heard of 0 s ago"):
        DriverLock(tmp_path).take()
    os.utime(tmp_path / "driver.json", (time.time() - 700, time.time() - 700))
    assert DriverLock(tmp_path).take() is not None


def test_a_driver_ends_where_another_has_its_lock_and_not_where_the_lock_cannot_be_found(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    clock = StillClock()
    lock = DriverLock(folder, clock)
    lock.take()
    folder.rename(tmp_path / "moved")
    assert lock.keep()
    folder.mkdir()
    (folder / "driver.json").write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "x", "token": "y"}))
    assert lock.keep()  # it is looked at from time to time
    clock.s += 30
    assert not lock.keep()


@pytest.fixture
def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_hard_links")
def test_one_driver_has_the_folder_where_there_are_no_hard_links(tmp_path: Path) -> None:
    lock = DriverLock(tmp_path)
    lock.take()
    assert lock.owner() == lock.me
    with pytest.raises(Taken, match=f"process {os.getpid()} on "):
        DriverLock(tmp_path).take()
    lock.release()
    assert list(tmp_path.iterdir()) == []
