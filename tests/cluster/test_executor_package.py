"""The executor's own tests of whole workflows, Snakemake's conformance tests among them, on a real Slurm."""

from __future__ import annotations

import sys

import pytest

from tests.cluster.box import USER
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.workflow import ROOT, environment_of

TESTS = "executor/tests/test_workflows.py"


@pytest.mark.timeout(900)
def test_snakemakes_conformance_tests_and_everyday_workflows_pass(slurm: SlurmBox) -> None:
    folder = slurm.home / "conformance"
    slurm.must(["mkdir", str(folder)], USER)
    options = ["-p", "no:cacheprovider", "-vv", f"--basetemp={folder}/tmp"]
    command = [sys.executable, "-m", "pytest", *options, str(ROOT / TESTS)]
    environment = {**environment_of(slurm), "MULTINODE_TEST_SCHEDULER": "slurm", "PYTHONDONTWRITEBYTECODE": "1"}
    done = slurm.run(command, USER, folder, timeout=880, **environment)
    assert done.returncode == 0, done.stdout
    assert "::test_simple_workflow PASSED" in done.stdout
