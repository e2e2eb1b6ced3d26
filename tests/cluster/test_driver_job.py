"""The driver as a job of a real Slurm, by the script of profiles/slurm as it is shipped."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import MACHINE, THROUGH
from tests.cluster.try_box import command_of, copy_of_project

pytestmark = pytest.mark.slow


def test_the_drivers_job_submits_those_of_a_study_and_draws_it(slurm: SlurmBox) -> None:
    clone = copy_of_project(slurm, "driver_job")
    study = THROUGH.replace("ranks: [1, 2, 4]", "ranks: [2]").partition("tables:")[0]
    for name, text in (("config/machines/box.yaml", MACHINE), ("config/studies/through.yaml", study)):
        (clone / name).write_text(text)
        os.chown(clone / name, clone.stat().st_uid, clone.stat().st_gid)
    options = ("--parsable", "--time=30", "--mem=2G", "profiles/slurm/driver.sh", "through")
    command = command_of(slurm, clone, "sbatch", *options, "--config", "machine=box", "scale=mini")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    job = done.stdout.split()[-1]
    slurm.until(["scontrol", "-o", "show", "job", job], "JobState=COMPLETED", 300)
    log = (clone / f"slurm-{job}.out").read_text()
    assert len(list(clone.glob("results/box/runs/*/result.json"))) == 1, log
    assert list(clone.glob("results/box/mini/figures/through/*.svg")), log
