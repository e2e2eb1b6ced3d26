"""`driver.sh` of the profiles: near its walltime the driver's job submits its successor, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(("profile", "submit"), [("slurm", "sbatch"), ("pbs", "qsub"), ("sge", "qsub")])
@pytest.mark.parametrize(("snakemake", "time", "submissions"), [("exit 1", "60s", 0), ("sleep 60", "0.5s", 1)])
def test_a_driver_submits_its_successor_when_its_time_is_over(
    tmp_path: Path, profile: str, submit: str, snakemake: str, time: str, submissions: int
) -> None:
    script = shutil.copy(ROOT / f"profiles/{profile}/driver.sh", tmp_path)
    for name, text in (("snakemake", snakemake), (submit, 'echo "$@" >>submitted'), (".venv/bin/activate", "")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o700)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DRIVER_TIME": time, "PBS_O_WORKDIR": str(tmp_path)}
    done = subprocess.run([script, "all"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 1 - submissions
    file = tmp_path / "submitted"
    lines = file.read_text().splitlines() if file.exists() else []
    assert len(lines) == submissions
    assert all(line.startswith(f"profiles/{profile}/driver.sh") for line in lines)
