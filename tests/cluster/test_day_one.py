"""A cluster that has no files yet: `scalestudy doctor --write` on a real Slurm, and a study with what it wrote.

The driver is a job too.
"""

from __future__ import annotations

import os
import re
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

    def call(*words: str, timeout: float = 240) -> tuple[int, str]:
        done = subprocess.run(
            command_of(slurm, clone, *words), capture_output=True, text=True, timeout=timeout, check=False
        )
        return done.returncode, done.stdout + done.stderr

    _, said = call("scalestudy", "doctor", "--write", "fresh", "--nodes", "1")
    assert "wrote config/machines/fresh.yaml" in said, said
    machine = parse_yaml((clone / "config/machines/fresh.yaml").read_text(), "fresh.yaml").data
    assert (machine["nodes"], machine["devices_per_node"], machine["cores_per_node"]) == (4, 4, 16)
    assert machine["device"] == "cpu"  # the GPUs of the box are a fiction, and torch sees none
    assert "shows torch no GPU" in said
    assert next(iter(machine["queues"])) == "gpu"
    assert Machine.model_validate(machine).queues["gpu"].walltime_limit_h == 1

    file = clone / "config/machines/fresh.yaml"
    written = file.read_text()
    file.write_text(written.replace("nodes: 4\n", "nodes: 9\n", 1))
    status, said = call("scalestudy", "doctor", "--profile", "profiles/fresh", "--wait", "1")
    assert status == 1
    assert "config/machines/fresh.yaml: `nodes: 9`, and Slurm has 4 nodes in its queues" in said
    file.write_text(written)

    status, said = call("scalestudy", "drive", "through", "--profile", "profiles/fresh", "--hours", "0.5")
    assert status == 0, said
    found = re.search(r"runs in job (\d+); its log: (\S+)", said)
    assert found is not None, said
    slurm.until(["scontrol", "-o", "show", "job", found[1]], "JobState=COMPLETED", 200)
    log = (clone / found[2]).read_text()
    assert list(clone.glob("results/fresh/runs/*/result.json")), log
    assert list(clone.glob("results/fresh/mini/figures/through/*.svg")), log

    status, said = call("scalestudy", "doctor", "--write", "fresh")
    assert status == 2
    assert "is there already: config/machines/fresh.yaml" in said
