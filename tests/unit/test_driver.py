"""What a driver on this machine makes sure of before its first job."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake import cli

from scalestudy import processes
from scalestudy.dag import driver

ROOT = Path(__file__).resolve().parents[2]


def workflow(result: Path, *, local: bool = True) -> Any:
    """As Snakemake gives it to hooks: one run is to be trained."""
    job = SimpleNamespace(rule=SimpleNamespace(name="train"), output=[result])
    return SimpleNamespace(local_exec=local, dag=SimpleNamespace(needrun_jobs=lambda: [job]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(processes.DRIVER, "of another driver")
    return tmp_path


@pytest.mark.parametrize("profile", ["", "local", "allocation", "slurm", "sge", "pbs"])
def test_no_shipped_profile_has_snakemakes_own_lock_which_outlives_a_killed_driver(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, options = cli.parse_args(["--profile", f"profiles/{profile}"] if profile else [])
    assert options.nolock


def test_a_local_driver_takes_the_folder(folder: Path) -> None:
    driver.own_folder(workflow(folder / "result.json"))
    assert processes.driver() == processes.identity(os.getpid())


def test_what_is_submitted_knows_no_driver(folder: Path) -> None:
    driver.own_folder(workflow(folder / "result.json", local=False))
    assert processes.driver() == ""
