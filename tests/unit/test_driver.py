"""What a driver on this machine makes sure of before its first job."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake import cli

from scalestudy import dag, driver

ROOT = Path(__file__).resolve().parents[2]


def workflow(result: Path, *, local: bool = True) -> Any:
    """As Snakemake gives it to hooks: one run is to be trained."""
    job = SimpleNamespace(rule=SimpleNamespace(name="train"), output=[result])
    return SimpleNamespace(local_exec=local, dag=SimpleNamespace(needrun_jobs=lambda: [job]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(driver.DRIVER, "of another driver")
    return tmp_path


@pytest.mark.parametrize("profile", ["", "local", "allocation", "slurm", "sge", "pbs"])
def test_no_shipped_profile_has_snakemakes_own_lock_which_outlives_a_killed_driver(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, options = cli.parse_args(["--profile", f"profiles/{profile}"] if profile else [])
    assert options.nolock


def test_a_run_that_another_driver_finished_meanwhile_is_not_made_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "result.json").touch()
    os.utime(folder / "result.json", (1001, 1001))
    with pytest.raises(SystemExit) as end:
        dag.own_folder(workflow(folder / "result.json"), begin=1000.0)
    assert end.value.code == 2
    assert "result.json: another driver finished this run while this one was reading the folder" in (
        capsys.readouterr().err
    )


def test_a_run_with_an_old_result_is_made_again_where_that_was_asked_for(folder: Path) -> None:
    (folder / "result.json").touch()
    os.utime(folder / "result.json", (999, 999))
    dag.own_folder(workflow(folder / "result.json"), begin=1000.0)
    assert driver.known() == driver.identity(os.getpid())


def test_what_is_submitted_knows_no_driver(folder: Path) -> None:
    dag.own_folder(workflow(folder / "result.json", local=False), begin=1000.0)
    assert driver.known() == ""


def mark(output: Path) -> Path:
    """Mark an output as Snakemake marks what a job is about to make; long names are cut."""
    name = urlsafe_b64encode(str(output).encode()).decode()
    parts = [name[begin : begin + 254] for begin in range(0, len(name), 254)]
    file = Path(".snakemake/incomplete", *(f"@{part}" for part in parts[:-1]), parts[-1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return file


def test_a_result_that_is_there_is_finished_whoever_was_killed_since_its_job_began(folder: Path) -> None:
    runs = Path("results/local/runs")
    there, absent, long = runs / "there/result.json", runs / "absent/result.json", runs / ("x" * 240) / "result.json"
    figure = Path("results/local/mini/figures/study/time.svg")
    for output in (there, long, figure):
        output.parent.mkdir(parents=True)
        output.touch()
    marks = {output: mark(output) for output in (there, absent, long, figure)}
    foreign = Path(".snakemake/incomplete/not base 64")
    foreign.touch()
    dag.driver.keep_finished_runs()
    assert [output for output, file in marks.items() if file.exists()] == [absent, figure]
    assert foreign.exists()
