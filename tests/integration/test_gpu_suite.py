"""The suite for machines with a GPU, on one without: its dry part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.project import ROOT


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run python -m tests.gpu")
def test_without_a_gpu_the_dry_part_runs_and_nothing_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("no GPU here: the dry part")
    outcomes = json.loads((tmp_path / "gpu.json").read_text())["outcomes"]
    assert {outcome["status"] for outcome in outcomes} == {"passed", "not here"}
    assert {outcome["part"] for outcome in outcomes} == {"checks", "measures", "study"}
