"""A driver on this machine that is killed: the same command simply resumes, and no run is trained by two processes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.processes import file_stand_in, stand_in, wait_until
from tests.integration.project import Project, make_project

COMMAND = ("snakemake", "--profile", "profiles/local", "tiny")
# 90 steps of 0.2 s, and hardly any work.
STUDY = """\
question: Does a run outlive its driver?
base:
  model: {name: mlp, hidden: 8, layers: 2}
  data: {source: digits}
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 2, evaluate_every_epochs: 0}
  faults: [{kind: slow_rank, rank: 0, seconds: 0.2}]
vary:
  ranks: [1]
scales:
  mini: {}
tables:
  - {name: times, values: [step_time_s]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A clone with one run of twenty seconds, which waits for no measured run of others on this host."""
    made = make_project(tmp_path / "clone", forked=True)
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path))
    made.study.write_text(STUDY)
    return made


@pytest.fixture
def driver(project: Project) -> Iterator[subprocess.Popen[bytes]]:
    """A driver, as profiles/local has it, whose run has begun."""
    quiet = subprocess.DEVNULL
    environment = project.environment()
    with subprocess.Popen(COMMAND, cwd=project.folder, env=environment, stdout=quiet, stderr=quiet) as process:
        try:
            assert wait_until(lambda: list(run_folder(project).glob("log/rank.*")), 90)
            yield process
        finally:
            process.kill()


def run_folder(project: Project) -> Path:
    """Of the one run, as soon as it is there."""
    return next(iter(project.folder.glob("results/local/runs/*")), project.folder / "none")


def test_after_sigkill_of_the_driver_the_same_command_resumes_from_a_checkpoint(
    project: Project, driver: subprocess.Popen[bytes]
) -> None:
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    again = project.run(*COMMAND)
    assert again.returncode == 0, again.stdout
    assert "Lock" not in again.stdout
    result = json.loads((run_folder(project) / "result.json").read_text())
    assert [link["cause"] for link in result["links"]] == ["because its driver is gone", "the run is complete"]
    assert sum(link["steps"] for link in result["links"]) == result["steps_done"]
    assert all(link["steps"] for link in result["links"])
    assert not list(run_folder(project).glob(".trainer*"))


def test_after_sigterm_to_the_driver_its_run_stops_with_a_checkpoint_and_the_same_command_resumes_it(
    project: Project, driver: subprocess.Popen[bytes]
) -> None:
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(60) == 1
    assert not (run_folder(project) / "result.json").exists()
    again = project.run(*COMMAND)
    assert again.returncode == 0, again.stdout
    result = json.loads((run_folder(project) / "result.json").read_text())
    stopped, last = result["links"]
    assert "SIGTERM" in stopped["cause"] and stopped["steps"] + last["steps"] == result["steps_done"]


def test_a_second_driver_is_told_of_the_first_and_who_only_looks_is_not_kept_out(
    project: Project, driver: subprocess.Popen[bytes]
) -> None:
    second = project.run(*COMMAND)
    assert second.returncode == 2
    assert f"another driver works in this folder: process {driver.pid} on " in second.stdout
    assert "unlock" not in second.stdout
    for looking in (("-n",), ("--summary",), ("--unlock",)):
        done = project.run("snakemake", *looking)
        assert done.returncode == 0, done.stdout
    assert driver.poll() is None
    assert json.loads((project.folder / ".scalestudy" / "driver.json").read_text())["pid"] == driver.pid


def test_a_run_that_ends_after_its_driver_was_killed_is_not_made_again(project: Project, tmp_path: Path) -> None:
    project.study.write_text(STUDY.replace("seconds: 0.2", "seconds: 0.001"))
    waits = stand_in(
        file_stand_in(tmp_path), "hold", "*/runs/*/.result.*.json", "w", tmp_path / "mark"
    )  # while it writes its result
    quiet = subprocess.DEVNULL
    environment = {**project.environment(), **waits}
    with subprocess.Popen(COMMAND, cwd=project.folder, env=environment, stdout=quiet, stderr=quiet) as process:
        assert wait_until((tmp_path / "mark").exists, 90)
        process.kill()
    (tmp_path / "mark.go").touch()
    file = run_folder(project) / "result.json"
    assert wait_until(file.exists, 30)
    before = file.stat()
    again = project.run(*COMMAND)
    assert again.returncode == 0, again.stdout
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("killed", ["python", "bash"])
def test_a_run_whose_command_is_killed_after_its_result_was_written_keeps_that_result(
    project: Project, tmp_path: Path, killed: str
) -> None:
    """Where Snakemake's shell is killed, the command ends by itself, later and with success."""
    project.study.write_text(STUDY.replace("seconds: 0.2", "seconds: 0.001"))
    waits = stand_in(
        file_stand_in(tmp_path), "hold", "*/history.jsonl", "w", tmp_path / "mark"
    )  # what it writes after its result
    quiet = subprocess.DEVNULL
    environment = {**project.environment(), **waits}
    with subprocess.Popen(COMMAND, cwd=project.folder, env=environment, stdout=quiet, stderr=quiet) as driver:
        assert wait_until((tmp_path / "mark").exists, 90)
        file = run_folder(project) / "result.json"
        before = file.read_bytes()
        processes = psutil.Process(driver.pid).children(recursive=True)
        (client,) = [process for process in processes if runs(process, "python")]
        (victim,) = [process for process in processes if runs(process, killed)]
        victim.kill()
        assert driver.wait(60) == 1
    (tmp_path / "mark.go").touch()
    assert wait_until(lambda: not client.is_running(), 30)
    assert file.read_bytes() == before
    again = project.run(*COMMAND)
    assert again.returncode == 0, again.stdout
    assert file.read_bytes() == before
    assert "To do: 1 run" not in again.stdout


def runs(process: psutil.Process, program: str) -> bool:
    """Whether it is that program's part of `bash -c "scalestudy train …"`, as Snakemake starts it."""
    words = process.cmdline()
    return "train" in " ".join(words) and Path(words[0]).name.startswith(program)
