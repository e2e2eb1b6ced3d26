"""A cluster that has no files yet: `scalestudy doctor --write` on a real Slurm, and a study with what it wrote.

The driver is a job too.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from scalestudy.spec.machine import Machine
from scalestudy.spec.yamlfile import parse_yaml
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import THROUGH
from tests.cluster.try_box import command_of, copy_of_project

pytestmark = pytest.mark.slow


def test_the_doctor_writes_files_with_which_a_study_runs_unedited(slurm: SlurmBox) -> None:
    clone = copy_of_project(slurm, "day_one")
    study = clone / "config/studies/through.yaml"
    study.write_text(THROUGH.replace("ranks: [1, 2, 4]", "ranks: [2]").partition("tables:")[0])
    os.chown(study, clone.stat().st_uid, clone.stat().st_gid)

    def call(*words: str) -> tuple[int, str]:
        command = command_of(slurm, clone, *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        return done.returncode, done.stdout + done.stderr

    _, said = call("scalestudy", "doctor", "--write", "fresh", "--nodes", "1")
    assert "wrote config/machines/fresh.yaml" in said, said
    file = clone / "config/machines/fresh.yaml"
    machine = parse_yaml(file.read_text(), "fresh.yaml").data
    assert (machine["nodes"], machine["devices_per_node"], machine["cores_per_node"]) == (4, 4, 16)
    assert machine["device"] == "cpu"  # the GPUs of the box are a fiction, and torch sees none
    assert "shows torch no GPU" in said
    assert next(iter(machine["queues"])) == "gpu"
    assert Machine.model_validate(machine).queues["gpu"].walltime_limit_h == 1

    written = file.read_text()
    file.write_text(written.replace("nodes: 4\n", "nodes: 9\n", 1))
    status, said = call("scalestudy", "doctor", "--profile", "profiles/fresh", "--wait", "1")
    assert status == 1
    assert "config/machines/fresh.yaml: `nodes: 9`, and Slurm has 4 nodes in its queues" in said
    file.write_text(written)

    driver = clone / "profiles/fresh/driver.sh"
    driver.write_text((clone / "profiles/slurm/driver.sh").read_text().replace("profiles/slurm", "profiles/fresh"))
    status, said = call("sbatch", "--parsable", "--time=30", "--mem=2G", str(driver), "through")
    assert status == 0, said
    job = said.split()[-1]
    slurm.until(["scontrol", "-o", "show", "job", job], "JobState=COMPLETED", 200)
    log = (clone / f"slurm-{job}.out").read_text()
    assert list(clone.glob("results/fresh/runs/*/result.json")), log
    assert list(clone.glob("results/fresh/paper/figures/through/*.svg")), log

    status, said = call("scalestudy", "doctor", "--write", "fresh")
    assert status == 2
    assert "is there already: config/machines/fresh.yaml" in said
