"""One measured run per host, whoever runs it and wherever temporary files go; nobody else can hold it up for ever."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalestudy import host_lock
from scalestudy.cli import run_command
from scalestudy.errors import UserError
from scalestudy.host_lock import LOCKS, beside_measured_runs, measured_run
from scalestudy.spec.layout import STATE_FILE
from scalestudy.training.control_files import EXIT_STOPPED

HOLD = """
import sys
from scalestudy.host_lock import beside_measured_runs, measured_run
with measured_run(sys.argv[1]) if sys.argv[1] else beside_measured_runs():
    print("held", flush=True)
    sys.stdin.readline()
"""
FLOCK = """
import fcntl, os, sys
os.setuid(65534)
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""
as_root = pytest.mark.skipif(os.getuid() != 0, reason="root can be two users")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the lock, as /tmp is: of all users, sticky."""
    made = tmp_path / "locks"
    made.mkdir()
    made.chmod(0o1777)
    for above in made.parents:
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
    monkeypatch.delenv(LOCKS)
    monkeypatch.setattr(host_lock, "FOLDER", made)
    return made


@contextmanager
def holder(program: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is sent a line."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def until_said(capsys: pytest.CaptureFixture[str], process: subprocess.Popen[str]) -> str:
    """What is said while the lock is waited for; the other process lets go soon after."""
    end = threading.Timer(0.3, process.kill)
    end.start()
    with measured_run("mine"):
        pass
    end.join()
    return capsys.readouterr().err


@pytest.mark.slow
def test_who_waits_is_told_run_and_process(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holder(HOLD, "run vgg-1\x1b[2J", TMPDIR=str(folder), SCALESTUDY_LOCKS=str(folder)) as other:
        said = until_said(capsys, other)
    assert said.startswith(rf"scalestudy: waiting for run vgg-1\x1b[2J (process {other.pid}) to end")


def test_a_job_that_ends_while_its_run_waits_says_what_it_waited_for_and_goes_on_in_another(
    folder: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALESTUDY_WARM", "0")
    monkeypatch.setenv("SCALESTUDY_DEADLINE", str(time.time() + host_lock.MARGIN_S))
    with holder(HOLD, "run vgg-1", SCALESTUDY_LOCKS=str(folder)):
        assert run_command(["try", "train.epochs=1", "--out", "run"]) == EXIT_STOPPED
    state = json.loads((here / "run" / STATE_FILE).read_text())
    assert (state["state"], state["progress"]) == ("checkpointed", 0)
    assert "its job ends after a wait of 0 min for run vgg-1 (process " in state["cause"]
    assert state["cause"] in capsys.readouterr().err


@pytest.mark.slow
def test_what_takes_time_beside_a_run_is_waited_for_and_does_not_wait_for_its_like(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with holder(HOLD, "", SCALESTUDY_LOCKS=str(folder)) as other:
        with beside_measured_runs():
            pass
        assert capsys.readouterr().err == ""
        first, last = until_said(capsys, other).splitlines()
        assert first == "scalestudy: waiting for other work on this host to end"
        assert re.fullmatch(r"scalestudy: the wait is over, after \d+ s", last)


def test_after_a_run_nothing_but_empty_locks_is_left(folder: Path) -> None:
    with measured_run("mine"):
        assert json.loads((folder / f"scalestudy-{os.getuid()}.lock").read_text())["name"] == "mine"
    assert {file.read_text() for file in folder.iterdir()} == {""}
    own, of_all = sorted(folder.iterdir(), key=lambda file: file.name)
    assert (own.name, stat.S_IMODE(own.stat().st_mode)) == (f"scalestudy-{os.getuid()}.lock", 0o600)
    assert (of_all.name, stat.S_IMODE(of_all.stat().st_mode)) == ("scalestudy-host.lock", 0o644)


@as_root
def test_another_user_who_holds_the_lock_of_all_is_waited_for_a_limited_time(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_lock, "MAX_WAIT_FOR_OTHERS_S", 0.3)
    with measured_run("mine"):
        pass
    with holder(FLOCK, str(folder / "scalestudy-host.lock")) as other:
        with measured_run("mine"):
            assert other.poll() is None
        assert "continuing at the same time" in capsys.readouterr().err


@as_root
def test_a_user_who_has_taken_my_lock_is_named(folder: Path) -> None:
    (folder / "scalestudy-0.lock").touch()
    os.chown(folder / "scalestudy-0.lock", 65534, 65534)
    with pytest.raises(UserError, match="it belongs to nobody"), measured_run("mine"):
        pass
