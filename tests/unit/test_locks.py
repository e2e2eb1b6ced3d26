"""A run's folder has one trainer; an orphan of a killed driver is waited for, anybody else is not disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalestudy import locks, processes
from scalestudy.errors import UserError
from scalestudy.launch import keeper, trainer_lock
from scalestudy.launch.trainer_lock import only_trainer, trainer_of
from tests.integration.processes import wait_until

HOLD = """
import sys
from pathlib import Path
from scalestudy.launch import keeper
from scalestudy.launch.trainer_lock import only_trainer
keeper.BEAT_S = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
with only_trainer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_nobody_takes_over_from_a_trainer_that_is_stopped_for_longer_than_a_dead_one_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trainer(tmp_path, beat_s=0.2) as first:
        first.send_signal(signal.SIGSTOP)
        time.sleep(2.5)  # longer than SILENT_S below: only the keeper shows that the trainer lives
        with pytest.raises(UserError, match=f"process {first.pid} on this machine trains"), only_trainer(tmp_path):
            pass
        on_another_host(monkeypatch)
        with (
            unlocked(tmp_path),
            pytest.raises(UserError, match=f"process {first.pid} on .* trains"),
            only_trainer(tmp_path),
        ):
            pass
        first.send_signal(signal.SIGCONT)


@contextmanager
def trainer(folder: Path, of_driver: str = "", beat_s: float = 10.0) -> Iterator[subprocess.Popen[str]]:
    """Another process that trains the run of a folder, until it is sent a line."""
    environment = {**os.environ, processes.DRIVER: of_driver}
    command = [sys.executable, "-c", HOLD, str(folder), str(beat_s)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def dead_driver() -> str:
    """The identity of a driver that has been killed."""
    with subprocess.Popen(["sleep", "60"]) as process:
        found = processes.identity(process.pid)
        process.kill()
    assert found is not None
    return found


def test_a_second_trainer_of_a_run_is_refused_and_told_the_first(tmp_path: Path) -> None:
    with trainer(tmp_path) as first:
        refusal = f"process {first.pid} on this machine trains this run"
        with pytest.raises(UserError, match=refusal), only_trainer(tmp_path):
            pass
        assert first.poll() is None


def test_an_orphan_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with trainer(tmp_path, dead_driver()) as orphan:
        assert orphan.stdin is not None
        end = threading.Timer(0.2, lambda: (orphan.stdin.write("\n"), orphan.stdin.flush()))
        end.start()
        with only_trainer(tmp_path):
            assert orphan.wait() == 0
    assert f"waiting for process {orphan.pid}: its driver is gone" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_that_was_killed_holds_up_nobody(tmp_path: Path) -> None:
    with trainer(tmp_path) as killed:
        killed.kill()
        killed.wait()
        with only_trainer(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_person_has_started_has_no_driver_to_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.DRIVER, "")
    processes.conceal_driver()
    assert not processes.is_gone(processes.driver())
    monkeypatch.setenv(processes.DRIVER, "")
    processes.announce_driver()
    assert processes.driver() == processes.identity(os.getpid())
    processes.conceal_driver()
    assert processes.driver() == ""


# Another host


@pytest.fixture
def other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    on_another_host(monkeypatch)


def on_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process sees itself on another host than those that it starts; and does not wait long."""
    here = {**locks.me(), "host": "node2", "place": "another boot"}
    for module in (locks, trainer_lock):
        monkeypatch.setattr(module, "me", lambda: here)
    monkeypatch.setattr(trainer_lock, "SILENT_S", 2.0)


@contextmanager
def unlocked(folder: Path) -> Iterator[None]:
    """The lock is not seen, as on a file system that keeps the locks of each host to itself."""
    file = folder / trainer_lock.LOCK
    seen = file.read_bytes()
    file.unlink()
    file.write_bytes(seen)
    yield


@pytest.mark.usefixtures("other_host")
def test_a_trainer_on_another_host_is_seen_where_locks_are_not(tmp_path: Path) -> None:
    with trainer(tmp_path) as first, unlocked(tmp_path):
        beat = threading.Timer(0.5, os.utime, [tmp_path / trainer_lock.LOCK])
        beat.start()
        with pytest.raises(UserError, match=f"process {first.pid} on .* trains this run"), only_trainer(tmp_path):
            pass


@pytest.mark.usefixtures("other_host")
def test_a_trainer_on_a_host_that_crashed_holds_up_nobody_for_long(tmp_path: Path) -> None:
    with trainer(tmp_path), unlocked(tmp_path), only_trainer(tmp_path):  # nobody touches the file that lies there now
        assert trainer_of(tmp_path) is None or "node2" in (tmp_path / trainer_lock.LOCK).read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_touches_its_lock_while_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "BEAT_S", 0.05)
    file = tmp_path / trainer_lock.LOCK
    with only_trainer(tmp_path):
        first, end = file.stat().st_mtime_ns, time.monotonic() + 10
        while file.stat().st_mtime_ns == first and time.monotonic() < end:
            time.sleep(0.01)
        assert file.stat().st_mtime_ns > first


def test_the_trainer_of_a_folder_is_named_to_others(tmp_path: Path) -> None:
    assert trainer_of(tmp_path) is None
    with trainer(tmp_path) as process:
        assert trainer_of(tmp_path) == f"process {process.pid}"
        process.kill()
        process.wait()
        # Its keeper holds the lock until it has cleaned up.
        assert wait_until(lambda: trainer_of(tmp_path) is None, 10)
