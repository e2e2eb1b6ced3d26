"""The job script, run by a real bash."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from snakemake_executor_plugin_scalestudy.jobscript import Script
from snakemake_executor_plugin_scalestudy.marks import Marks


def script(folder: Path, command: str, **more: object) -> Path:
    """A job script for a command, in a folder with an awkward name."""
    folder = folder / 'it\'s a "folder" $HOME'
    folder.mkdir()
    values = {"setup": (), "wrapper": (), "environment": {}, "runtime_min": None, **more}
    text = Script(
        name="job", title="a\ntitle", properties="{}", marks=folder / "marks", workdir=folder, command=command,
        path_first=Path("/opt/first"), **values,
    ).text()  # fmt: skip
    (folder / "marks").mkdir()
    (folder / "job.sh").write_text(text)
    return folder


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(folder / "job.sh")], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("code", [0, 1, 75])
def test_the_exit_status_of_the_command_is_marked(tmp_path: Path, code: int) -> None:
    folder = script(tmp_path, f"exit {code}")
    assert run(folder).returncode == code
    end = Marks(folder / "marks").end("job")
    assert end is not None
    assert (end.code, end.signal) == (code, "")
    assert end.ended_s >= end.began_s > 0


def test_it_has_the_setup_the_environment_the_deadline_and_the_wrapper(tmp_path: Path) -> None:
    folder = script(
        tmp_path, 'echo "$GREETING|$PWD|$SCALESTUDY_JOB|${PATH%%:*}"; echo $((SCALESTUDY_DEADLINE))',
        setup=("GREETING=\"$GREETING world\"", "export GREETING"), environment={"GREETING": "it's $a"},
        runtime_min=10, wrapper=("env", "WRAPPED=1"),
    )  # fmt: skip
    before = time.time()
    first, deadline = run(folder).stdout.splitlines()
    assert first == f"it's $a world|{folder}|job|/opt/first"
    assert before + 595 < int(deadline) <= time.time() + 600


def test_a_submission_that_was_given_up_does_nothing(tmp_path: Path) -> None:
    folder = script(tmp_path, "touch ran")
    marks = Marks(folder / "marks")
    assert marks.void("job")
    assert run(folder).returncode == 0
    assert not (folder / "ran").exists()
    assert marks.end("job") is None


def test_a_submission_that_runs_cannot_be_given_up(tmp_path: Path) -> None:
    folder = script(tmp_path, "true")
    run(folder)
    assert not Marks(folder / "marks").void("job")


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_a_warning_to_the_script_alone_reaches_the_command_and_not_its_launcher(tmp_path: Path, name: str) -> None:
    # A Python between the script and the command stands for Snakemake, which would die of the signal.
    launcher = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1], shell=True))"
    folder = script(tmp_path, f"python3 -c {shlex.quote(launcher)} {shlex.quote(catching(name))}")
    process = subprocess.Popen(["bash", str(folder / "job.sh")], start_new_session=True)
    wait_for(folder / "ready")
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.wait(20) == 75
    assert (folder / "saved").exists()
    end = Marks(folder / "marks").end("job")
    assert end is not None
    assert (end.code, end.signal) == (75, name)


def test_after_a_term_to_all_the_script_waits_for_a_command_that_still_saves(tmp_path: Path) -> None:
    # The launcher dies of the signal; the command, which it leaves behind, takes a second to save.
    folder = script(tmp_path, f"bash -c {shlex.quote(catching('TERM') + '; true')}")
    process = subprocess.Popen(["bash", str(folder / "job.sh")], start_new_session=True)
    wait_for(folder / "ready")
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(20)
    assert (folder / "saved").exists()
    end = Marks(folder / "marks").end("job")
    assert end is not None
    assert (end.code, end.signal) == (143, "TERM")


def catching(name: str) -> str:
    """A command that saves for a second when it is sent a signal, and exits 75."""
    code = (
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n    time.sleep(1); pathlib.Path('saved').touch(); sys.exit(75)\n"
        f"signal.signal(signal.SIG{name}, save)\n"
        "pathlib.Path('ready').touch()\n"
        "while True: time.sleep(0.1)\n"
    )
    return f"python3 -c {shlex.quote(code)}"


def wait_for(path: Path) -> None:
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.02)
