"""The executor's own tests of whole workflows, Snakemake's conformance tests among them, on real batch systems."""

from __future__ import annotations

import re
import sys

import pytest

from tests.cluster.box import USER, Box
from tests.cluster.workflow import ROOT, environment_of

TESTS = "executor/tests/test_workflows.py"
"""What depends on the scheduler; all others are tried with a stand-in."""
ON_EACH = {"test_simple_workflow"}
ON_SLURM = ON_EACH | {
    "test_group_workflow",
    "test_a_group_whose_driver_was_killed_is_adopted",
    "test_the_example_of_a_chain_is_resumed_in_a_second_job",
    "test_a_group_that_fails_says_why",
    "test_a_pipe_whose_driver_was_killed_is_adopted_although_its_group_has_another_id",
    "test_scripts_groups_retries_and_configuration_work",
}
"""Groups and their jobs' names are this executor's and Snakemake's: one scheduler shows them. Drivers that are killed and jobs
that go on in a second one are in test_sge.py and test_pbs.py too."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["slurm", "sge", "pbs"])
def test_snakemakes_conformance_tests_and_everyday_workflows_pass(request: pytest.FixtureRequest, kind: str) -> None:
    box: Box = request.getfixturevalue(kind)
    folder = box.home / "conformance"
    box.must(["mkdir", str(folder)], USER)
    file = str(ROOT / TESTS)
    names = ON_SLURM if kind == "slurm" else ON_EACH
    options = ["-p", "no:cacheprovider", "-vv", f"--basetemp={folder}/tmp", "-k", " or ".join(sorted(names))]
    command = [sys.executable, "-m", "pytest", *options, file]
    environment = {**environment_of(box), "MULTINODE_TEST_SCHEDULER": kind, "PYTHONDONTWRITEBYTECODE": "1"}
    done = box.run(command, USER, folder, timeout=880, **environment)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"::(test_\w+) PASSED", done.stdout)) == names
