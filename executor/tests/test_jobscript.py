"""The job script, run by a real bash."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from snakemake_executor_plugin_multinode.jobscript import exports_of, write_script
from snakemake_executor_plugin_multinode.schedulers import Request
from snakemake_executor_plugin_multinode.site import SchedulerSettings, Site
from snakemake_executor_plugin_multinode.status_files import End, StatusFiles

AWKWARD = 'it\'s a "folder" $HOME'


def script(folder: Path, command: str, setup: tuple[str, ...] = (), name: str = AWKWARD, **more: Any) -> Path:
    """A job script for a command, in a folder of its own; returns the folder."""
    folder = folder / name
    folder.mkdir()
    request = Request("job", folder / "job.sh", folder / "job.log", 1, 1, 0, 1, None, more.get("runtime_min"), None)
    site = Site(scheduler=SchedulerSettings(kind="slurm", setup=setup), container=more.get("container"))
    marks, environment = StatusFiles(folder / "marks").folder, more.get("environment", {})
    with contextlib.chdir(folder):
        write_script(request, site, marks, "a\ntitle", command, environment)
    return folder


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(folder / "job.sh")], capture_output=True, text=True, timeout=30, check=False)


def end_of(folder: Path) -> End:
    end = StatusFiles(folder / "marks").end("job")
    assert end is not None
    return end


def test_it_has_the_setup_the_environment_and_the_deadline(tmp_path: Path) -> None:
    folder = script(
        tmp_path, 'echo "$GREETING|$PWD|$MULTINODE_JOB|${PATH%%:*}"; echo $((MULTINODE_DEADLINE))',
        setup=("GREETING=\"$GREETING world\"", "export GREETING"), environment={"GREETING": "it's $a"},
        runtime_min=10,
    )  # fmt: skip
    before = time.time()
    first, deadline = run(folder).stdout.splitlines()
    assert first == f"it's $a world|{folder}|job|{Path(sys.executable).parent}"
    assert before + 595 < int(deadline) <= time.time() + 600


def test_a_command_that_succeeds_while_the_disk_is_full_has_succeeded_once_its_end_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snakemake_executor_plugin_multinode.jobscript.INSIST_S", 0.1)
    # A folder that is away for a while stands for a full disk.
    folder = script(tmp_path, "rm -r marks; touch ran")
    process = subprocess.Popen(["bash", str(folder / "job.sh")])
    wait_for(folder / "ran")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    (folder / "marks").mkdir()
    assert process.wait(20) == 0
    end = end_of(folder)
    assert end.code == 0


def test_a_submission_that_was_given_up_does_nothing(tmp_path: Path) -> None:
    folder = script(tmp_path, "touch ran")
    files = StatusFiles(folder / "marks")
    assert files.void("job")
    assert run(folder).returncode == 0
    assert not (folder / "ran").exists()
    assert files.end("job") is None


def counting(folder: Path, code: int = 1) -> Path:
    """A job script whose command notes that it ran."""
    return script(folder, f"echo ran >>ran; exit {code}")


def runs(folder: Path) -> int:
    return len((folder / "ran").read_text().splitlines())


@pytest.mark.parametrize(("answer", "again"), [("2", True), ("1", False), ("", False)])
def test_a_script_that_pbs_has_started_twice_by_the_word_of_its_server_runs_again(
    tmp_path: Path, answer: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = counting(tmp_path)
    run(folder)
    qstat = tmp_path / "bin" / "qstat"
    qstat.parent.mkdir()
    said = f"Job Id: 7.head\n    job_state = R\n    run_count = {answer}\n" if answer else ""
    qstat.write_text(f"#!/bin/sh\n[ \"$*\" = '-f 7.head' ] && printf '{said}'\n")
    qstat.chmod(0o755)
    (tmp_path / "pbs.conf").write_text(f"PBS_SERVER=head\nPBS_EXEC={tmp_path}\n")
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    monkeypatch.setenv("PBS_JOBID", "7.head")
    assert run(folder).returncode == 1
    assert runs(folder) == (2 if again else 1)


def test_a_script_whose_command_has_succeeded_does_not_run_again_even_if_it_is_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = counting(tmp_path, 0)
    run(folder)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert run(folder).returncode == 0
    assert runs(folder) == 1


@pytest.mark.parametrize("how", ["judged", "result there"])
def test_a_script_whose_end_was_judged_or_whose_result_its_driver_has_does_not_run_again(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = counting(tmp_path)
    copy = tmp_path / "spooled.sh"  # a scheduler runs its own copy
    copy.write_text((folder / "job.sh").read_text())
    subprocess.run(["bash", str(copy)], check=False)
    if how == "judged":
        StatusFiles(folder / "marks").revoke("job")
    else:
        (folder / "job.sh").unlink()
        StatusFiles(folder / "marks").forget("job")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert subprocess.run(["bash", str(copy)], check=False).returncode == 0
    assert runs(folder) == 1


def test_a_warning_to_the_script_alone_reaches_the_command_and_not_its_launcher(tmp_path: Path) -> None:
    # A Python between the script and the command stands for Snakemake, which would die of the signal.
    launcher = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1], shell=True))"
    folder = script(tmp_path, f"python3 -c {shlex.quote(launcher)} {shlex.quote(catching('USR2'))}")
    process = subprocess.Popen(["bash", str(folder / "job.sh")], start_new_session=True)
    wait_for(folder / "ready")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(20) == 75
    assert (folder / "saved").exists()
    end = end_of(folder)
    assert (end.code, end.signal) == (75, "USR2")


def test_after_a_term_to_all_the_script_waits_for_a_command_that_still_saves(tmp_path: Path) -> None:
    # The launcher dies of the signal; the command, which it leaves behind, takes a moment to save.
    folder = script(tmp_path, f"bash -c {shlex.quote(catching('TERM') + '; true')}")
    process = subprocess.Popen(["bash", str(folder / "job.sh")], start_new_session=True)
    wait_for(folder / "ready")
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(20)
    assert (folder / "saved").exists()
    end = end_of(folder)
    assert (end.code, end.signal) == (143, "TERM")


def catching(name: str) -> str:
    """A command that saves for a moment when it is sent a signal, and exits 75."""
    code = (
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n    time.sleep(0.3); pathlib.Path('saved').touch(); sys.exit(75)\n"
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


def test_a_job_has_the_drivers_locale_whatever_its_scheduler_and_the_nodes_profile_set() -> None:
    lines = exports_of({"A": "it's"}, {"LANG": "C.UTF-8"})
    text = "\n".join([*lines, "echo Zürich | wc -m", 'echo "$A $LANG ${LC_ALL-unset}"'])
    done = subprocess.run(
        ["bash", "-c", text], env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "7\nit's C.UTF-8 unset\n"
