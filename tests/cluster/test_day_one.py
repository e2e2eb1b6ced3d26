"""A cluster that has no files yet: `scalestudy doctor --write` on a real Slurm, and a study with what it wrote.

The driver is a job too. On Grid Engine and OpenPBS: test_sge.py and test_pbs.py.
"""

from __future__ import annotations

import pytest

from scalestudy.spec.machine import Machine
from tests.cluster.new_site import NewSite
from tests.cluster.slurm_box import SlurmBox

pytestmark = pytest.mark.slow


def test_the_doctor_writes_files_with_which_a_study_runs_unedited(slurm: SlurmBox) -> None:
    site = NewSite(slurm)
    clone, call = site.clone, site.call
    _, said = call("scalestudy", "doctor", "--write", "fresh", "--nodes", "1")
    assert "wrote config/machines/fresh.yaml" in said, said
    machine = site.machine()
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

    driver = clone / "profiles/fresh/driver.sh"
    driver.write_text((clone / "profiles/slurm/driver.sh").read_text().replace("profiles/slurm", "profiles/fresh"))
    status, said = call("sbatch", "--parsable", "--time=30", "--mem=2G", str(driver), "through")
    assert status == 0, said
    job = said.split()[-1]
    slurm.until(["scontrol", "-o", "show", "job", job], "JobState=COMPLETED", 200)
    log = (clone / f"slurm-{job}.out").read_text()
    assert site.results(), log
    assert list(clone.glob("results/fresh/paper/figures/through/*.svg")), log

    status, said = call("scalestudy", "doctor", "--write", "fresh")
    assert status == 2
    assert "is there already: config/machines/fresh.yaml" in said
