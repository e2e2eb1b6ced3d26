"""A run's folder has one trainer; an orphan of a killed driver is waited for, anybody else is not disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalestudy import driver
from scalestudy.errors import UserError
from scalestudy.locks import only_trainer

HOLD = """
import sys
from pathlib import Path
from scalestudy.locks import only_trainer
with only_trainer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def trainer(folder: Path, of_driver: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that trains the run of a folder, until it is sent a line."""
    environment = {**os.environ, driver.DRIVER: of_driver}
    command = [sys.executable, "-c", HOLD, str(folder)]
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
        found = driver.identity(process.pid)
        process.kill()
    assert found is not None
    return found


def test_a_second_trainer_of_a_run_is_refused_and_told_the_first(tmp_path: Path) -> None:
    with trainer(tmp_path) as first:
        refusal = f"process {first.pid} on this machine trains this run"
        with pytest.raises(UserError, match=refusal), only_trainer(tmp_path):
            pass
        assert first.poll() is None


def test_the_trainer_of_a_driver_that_lives_is_not_waited_for(tmp_path: Path) -> None:
    alive = driver.identity(os.getpid())
    assert alive is not None
    with trainer(tmp_path, alive), pytest.raises(UserError, match="trains this run"), only_trainer(tmp_path):
        pass


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


def test_a_driver_that_was_killed_is_gone_even_where_its_parent_has_not_noted_it() -> None:
    process = subprocess.Popen(["sleep", "60"])
    identity = driver.identity(process.pid)
    assert identity is not None and not driver.is_gone(identity)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert driver.is_gone(identity)
    process.wait()
    assert driver.is_gone(identity)


def test_what_a_person_has_started_has_no_driver_to_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    driver.conceal()
    assert not driver.is_gone(driver.known())
    monkeypatch.setenv(driver.DRIVER, "")
    driver.announce()
    assert driver.known() == driver.identity(os.getpid())
    driver.conceal()
    assert driver.known() == ""
