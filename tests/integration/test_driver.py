"""A driver on this machine that is killed: the same command simply resumes, and no run is trained by two processes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.integration.processes import file_stand_in, stand_in, wait_until
from tests.integration.project import Project, make_project

COMMAND = ("snakemake", "--profile", "profiles/local", "tiny")
# 45 steps of 0.2 s, and hardly any work.
STUDY = """\
question: Does a run outlive its driver?
base:
  model: {name: mlp, hidden: 8, layers: 2}
  data: {source: digits}
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 1, evaluate_every_epochs: 0}
  checkpoint: {every_steps: 5}
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
    """A clone with one run of ten seconds, which waits for no measured run of others on this host."""
    made = make_project(tmp_path / "clone", forked=True)
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path))
    made.study.write_text(STUDY)
    return made


@contextmanager
def driving(project: Project, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver, as profiles/local has it."""
    quiet, environment = subprocess.DEVNULL, {**project.environment(), **more}
    with subprocess.Popen(COMMAND, cwd=project.folder, env=environment, stdout=quiet, stderr=quiet) as process:
        try:
            yield process
        finally:
            process.kill()


def run_folder(project: Project) -> Path:
    """Of the one run, as soon as it is there."""
    return next(iter(project.folder.glob("results/local/runs/*")), project.folder / "none")


def steps_saved(project: Project) -> int:
    """Of the newest checkpoint; 0 before the first."""
    return max((int(path.name[5:]) for path in run_folder(project).glob("checkpoint/step-*")), default=0)


def test_a_driver_that_is_terminated_and_then_killed_is_resumed_by_the_same_command_and_works_alone(
    project: Project,
) -> None:
    with driving(project) as driver:
        assert wait_until(lambda: steps_saved(project), 90)
        second = project.run(*COMMAND)
        assert second.returncode == 2
        assert f"another driver works in this folder: process {driver.pid} on " in second.stdout
        assert "unlock" not in second.stdout
        looking = project.run("snakemake", "--unlock")
        assert looking.returncode == 0, looking.stdout
        assert driver.poll() is None
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(60) == 1
    assert not (run_folder(project) / "result.json").exists()
    saved = steps_saved(project)
    with driving(project) as driver:
        assert wait_until(lambda: steps_saved(project) > saved, 90)
        driver.send_signal(signal.SIGKILL)
    again = project.run(*COMMAND)
    assert again.returncode == 0, again.stdout
    assert "Lock" not in again.stdout
    result = json.loads((run_folder(project) / "result.json").read_text())
    causes = [link["cause"] for link in result["links"]]
    assert "SIGTERM" in causes[0] and causes[1:] == ["because its driver is gone", "the run is complete"]
    assert sum(link["steps"] for link in result["links"]) == result["steps_done"]
    assert not list(run_folder(project).glob(".trainer*"))


def test_a_run_that_ends_after_its_driver_was_killed_is_not_made_again(project: Project, tmp_path: Path) -> None:
    project.study.write_text(STUDY.replace("seconds: 0.2", "seconds: 0.001"))
    # It waits while it writes its result.
    waits = stand_in(file_stand_in(tmp_path), "hold", "*/runs/*/.result.*.json", "w", tmp_path / "mark")
    with driving(project, **waits):
        assert wait_until((tmp_path / "mark").exists, 90)
    (tmp_path / "mark.go").touch()
    file = run_folder(project) / "result.json"
    assert wait_until(file.exists, 30)
    before = file.stat()
    again = project.run(*COMMAND)
    assert again.returncode == 0, again.stdout
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_run_whose_shell_is_killed_after_its_result_was_written_keeps_that_result(
    project: Project, tmp_path: Path
) -> None:
    """The command ends by itself, later and with success."""
    project.study.write_text(STUDY.replace("seconds: 0.2", "seconds: 0.001"))
    # It waits in what it writes after its result.
    waits = stand_in(file_stand_in(tmp_path), "hold", "*/history.jsonl", "w", tmp_path / "mark")
    with driving(project, **waits) as driver:
        assert wait_until((tmp_path / "mark").exists, 90)
        file = run_folder(project) / "result.json"
        before = file.read_bytes()
        processes = psutil.Process(driver.pid).children(recursive=True)
        (client,), (shell,) = ([one for one in processes if runs(one, name)] for name in ("python", "bash"))
        shell.kill()
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
