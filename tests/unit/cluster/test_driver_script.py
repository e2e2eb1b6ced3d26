"""`driver.sh` of the profiles: near its walltime the driver's job submits its successor, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


def stand_ins(folder: Path, texts: dict[str, str]) -> dict[str, str]:
    """Write scripts into a folder that comes first in PATH; the variables of a driver there."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o700)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "PBS_O_WORKDIR": str(folder)}


@pytest.mark.parametrize(("profile", "submit"), [("slurm", "sbatch"), ("pbs", "qsub"), ("sge", "qsub")])
@pytest.mark.parametrize(("snakemake", "time", "submissions"), [("exit 1", "60s", 0), ("sleep 60", "0.5s", 1)])
def test_a_driver_submits_its_successor_when_its_time_is_over(
    tmp_path: Path, profile: str, submit: str, snakemake: str, time: str, submissions: int
) -> None:
    script = shutil.copy(ROOT / f"profiles/{profile}/driver.sh", tmp_path)
    texts = {"snakemake": snakemake, submit: 'echo "$@" >>submitted', ".venv/bin/activate": ""}
    environment = stand_ins(tmp_path, texts) | {"DRIVER_TIME": time}
    done = subprocess.run([script, "all"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 1 - submissions
    file = tmp_path / "submitted"
    lines = file.read_text().splitlines() if file.exists() else []
    assert len(lines) == submissions
    assert all(line.startswith(f"profiles/{profile}/driver.sh") for line in lines)


@pytest.mark.parametrize("is_requeued", [False, True])
@pytest.mark.parametrize("profile", ["slurm", "pbs", "sge"])
def test_a_driver_that_was_requeued_waits_for_the_note_of_the_one_that_died(
    tmp_path: Path, profile: str, is_requeued: bool
) -> None:
    script = shutil.copy(ROOT / f"profiles/{profile}/driver.sh", tmp_path)
    count = int(is_requeued)
    # The stand-in of `sleep` is the note's end: a real one would take ten minutes.
    texts = {
        "snakemake": "exit 1", "qstat": f"echo '    run_count = {count + 1}'", ".venv/bin/activate": "",
        "sleep": "echo waited >>waits; : >.scalestudy/driver.json", ".scalestudy/driver.json": "{}",
    }  # fmt: skip
    variables = {"SLURM_RESTART_COUNT": f"{count}", "RESTARTED": f"{count}", "PBS_JOBID": "7", "DRIVER_TIME": "60s"}
    environment = stand_ins(tmp_path, texts) | variables
    assert subprocess.run([script, "all"], cwd=tmp_path, env=environment, check=False).returncode == 1
    assert (tmp_path / "waits").exists() == is_requeued
