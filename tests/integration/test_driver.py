"""A driver on this machine that is killed: the same command simply resumes, and no run is trained by two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scalestudy.files import read_json, write_json
from tests.integration.processes import file_stand_in, stand_in, wait_until
from tests.integration.project import Project, make_project

COMMAND = ("snakemake", "--profile", "profiles/local", "tiny")
MODEL = """\
import time
from pathlib import Path

from torch import nn


class Waits(nn.Linear):
    # Each step takes 0.2 s until there is a file `go`.
    def __init__(self, classes, channels):
        super().__init__(64 * channels, classes)

    def forward(self, x):
        if not (Path(__file__).parents[2] / "go").exists():
            time.sleep(0.2)
        return super().forward(x.flatten(1))
"""
STUDY = """\
question: Does a run outlive its driver?
base:
  model: {import: "waits:Waits"}
  data: {source: digits}
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 4, evaluate_every_epochs: 0}
  checkpoint: {every_steps: 5}
vary:
  ranks: [1]
scales:
  mini: {}
tables:
  - {name: times, values: [step_time_s]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A clone with one run, which ends soon after `go`, and waits for no measured run of others on this host."""
    made = make_project(tmp_path / "clone", forked=True)
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path))
    made.study.write_text(STUDY)
    (made.folder / "config/extensions/waits.py").write_text(MODEL)
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


def skip_what_has_no_result(project: Project) -> None:
    """The runs of the study were skipped before the site file was changed: they are to be made."""
    project.must("scalestudy", "expand", "--machine", "local", "--scale", "mini", "--study", "tiny")
    study = read_json(project.folder / "results/local/mini/studies/tiny/study.json")["study"]
    for run in study["runs"]:
        file = project.folder / "results/local/runs" / run["id"] / "result.json"
        if not file.exists():
            write_json(
                file,
                {"run": run["id"], "status": "skipped", "reason": "no disk", "spec": {}, "metrics": {}, "kinds": {}},
            )
            os.utime(file, (1, 1))


def run_folder(project: Project) -> Path:
    """Of the one run, as soon as it is there."""
    return next(iter(project.folder.glob("results/local/runs/*")), project.folder / "none")


def steps_saved(project: Project) -> int:
    """Of the newest checkpoint; 0 before the first."""
    return max((int(path.name[5:]) for path in run_folder(project).glob("checkpoint/step-*")), default=0)


def test_a_driver_that_is_terminated_and_then_killed_is_resumed_by_the_same_command_and_works_alone(
    project: Project,
) -> None:
    skip_what_has_no_result(project)
    with driving(project) as driver:
        assert wait_until(lambda: steps_saved(project), 90)
        second = project.run(*COMMAND)
        assert second.returncode == 2
        assert f"another driver works in this folder: process {driver.pid} on " in second.stdout
        assert "unlock" not in second.stdout
        project.must("snakemake", "--unlock")
        assert driver.poll() is None
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(60) == 1
    assert not (run_folder(project) / "result.json").exists()
    saved = steps_saved(project)
    with driving(project) as driver:
        assert wait_until(lambda: steps_saved(project) > saved, 90)
        driver.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not list(run_folder(project).glob(".trainer*")), 90)
    (project.folder / "go").touch()
    again = project.must(*COMMAND)
    assert "Lock" not in again
    result = json.loads((run_folder(project) / "result.json").read_text())
    causes = [link["cause"] for link in result["links"]]
    assert "SIGTERM" in causes[0] and causes[1:] == ["because its driver is gone", "the run is complete"]
    assert sum(link["steps"] for link in result["links"]) == result["steps_done"]
    assert not list(run_folder(project).glob(".trainer*"))


def test_a_result_that_is_written_when_its_driver_or_its_shell_is_killed_is_kept_and_not_made_again(
    project: Project, tmp_path: Path
) -> None:
    """The command of a killed shell ends by itself, later and with success."""
    (project.folder / "go").touch()
    library = file_stand_in(tmp_path)
    # The first driver is killed while its run writes the result.
    waits = stand_in(library, "hold", "*/runs/*/.result.*.json", "w", tmp_path / "first")
    with driving(project, **waits):
        assert wait_until((tmp_path / "first").exists, 90)
    (tmp_path / "first.go").touch()
    assert wait_until(project.results, 30)
    (first,) = project.results()
    before = first.stat()
    # The shell of another run is killed while the run notes something after its result.
    project.edit(project.study, "ranks: [1]", "seed: [0, 1]")
    skip_what_has_no_result(project)
    waits = stand_in(library, "hold", "*/history.jsonl", "w", tmp_path / "second")
    with driving(project, **waits) as driver:
        assert wait_until((tmp_path / "second").exists, 90)
        (second,) = set(project.results()) - {first}
        content = second.read_bytes()
        processes = psutil.Process(driver.pid).children(recursive=True)
        (client,), (shell,) = ([one for one in processes if runs(one, name)] for name in ("python", "bash"))
        shell.kill()
        assert driver.wait(60) == 1
    (tmp_path / "second.go").touch()
    assert wait_until(lambda: not client.is_running(), 30)
    assert second.read_bytes() == content, "neither deleted nor replaced by the one that was skipped"
    again = project.must(*COMMAND)
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert second.read_bytes() == content
    assert "To do: 1 run" not in again


def runs(process: psutil.Process, program: str) -> bool:
    """Whether it is that program's part of `bash -c "scalestudy train …"`, as Snakemake starts it."""
    words = process.cmdline()
    return "train" in " ".join(words) and Path(words[0]).name.startswith(program)
