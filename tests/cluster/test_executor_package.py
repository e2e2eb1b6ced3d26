"""The executor's own tests of whole workflows, Snakemake's conformance tests among them, on real batch systems."""

from __future__ import annotations

import re
import sys

import pytest

from tests.cluster.box import USER, Box
from tests.cluster.workflow import ROOT, environment_of

TESTS = ("test_conformance.py", "test_workflows.py", "test_everyday.py")
"""What depends on the scheduler; all others are tried with a stand-in."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["slurm", "sge", "pbs"])
def test_snakemakes_conformance_tests_and_everyday_workflows_pass(request: pytest.FixtureRequest, kind: str) -> None:
    box: Box = request.getfixturevalue(kind)
    folder = box.home / "conformance"
    box.must(["mkdir", str(folder)], USER)
    files = [str(ROOT / "executor/tests" / name) for name in TESTS]
    options = ["-p", "no:cacheprovider", "-vv", "-rs", f"--basetemp={folder}/tmp"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    environment = {**environment_of(box), "MULTINODE_TEST_SCHEDULER": kind, "PYTHONDONTWRITEBYTECODE": "1"}
    done = box.run(command, USER, folder, timeout=880, **environment)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 6, done.stdout
