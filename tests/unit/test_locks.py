"""A run's folder has one trainer; an orphan of a killed driver is waited for, anybody else is not disturbed."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from scalestudy import locks, processes
from scalestudy.errors import UserError
from scalestudy.launch import trainer_lock
from scalestudy.launch.trainer_lock import only_trainer, trainer_of
from tests.unit.test_host_lock import holder

HOLD = """
import sys
from pathlib import Path
from scalestudy.launch.keeper import keeper
from scalestudy.launch.trainer_lock import only_trainer
with only_trainer(Path(sys.argv[1])), keeper():
    print("held", flush=True)
    sys.stdin.readline()
"""


def trainer(folder: Path, of_driver: str = "") -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that trains the run of a folder, until it is sent a line."""
    return holder(HOLD, str(folder), **{processes.DRIVER: of_driver})


def dead_driver() -> str:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = processes.identity(process.pid)
        process.kill()
    assert found is not None
    return found


def test_a_second_trainer_of_a_run_is_refused_and_told_the_first_also_while_that_is_stopped(tmp_path: Path) -> None:
    with trainer(tmp_path) as first:
        refusal = f"process {first.pid} on this machine trains this run"
        for number in (signal.SIGSTOP, signal.SIGCONT):
            first.send_signal(number)
            with pytest.raises(UserError, match=refusal), only_trainer(tmp_path):
                pass
        assert first.poll() is None


def test_an_orphan_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with trainer(tmp_path, dead_driver()) as orphan:
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


@pytest.mark.timeout(60)
def test_a_trainer_on_another_host_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with trainer(tmp_path) as first:
        elsewhere = {**locks.me(), "host": "node2", "place": "another boot"}
        monkeypatch.setattr(locks, "me", lambda: elsewhere)
        monkeypatch.setattr(trainer_lock, "is_gone", lambda owner: True)  # its process number means nothing here
        with pytest.raises(UserError, match=f"process {first.pid} on .* trains this run"), only_trainer(tmp_path):
            pass


@pytest.mark.parametrize("alive", [True, False])
def test_without_locks_a_living_process_of_this_host_has_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    note = {**locks.me(), **({} if alive else {"process": "1:0"})}
    (tmp_path / trainer_lock.LOCK).write_text(json.dumps(note))
    monkeypatch.setattr("fcntl.flock", no_locks)
    assert (trainer_of(tmp_path) is not None) == alive
