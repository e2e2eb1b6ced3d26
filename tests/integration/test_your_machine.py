"""`make run` on a machine with GPUs, by stand-ins: what it chooses, plans, leaves out and says. Nothing is trained."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from tests.integration.project import ROOT, make_project
from tests.stand_ins import gpus


def test_a_gpu_machine_plans_the_gpu_scale(tmp_path: Path) -> None:
    project = make_project(tmp_path / "clone")
    for name in ("batch_and_precision", "loader_workers"):
        shutil.copy(ROOT / f"config/studies/{name}.yaml", project.study.parent)
    project.study.unlink()
    seen = gpus.environment(tmp_path / "nvml", 1, **gpus.H100)
    name = "h100_80gb_hbm3_x1"
    here = project.must("scalestudy", "run", "-n", **seen)
    assert f"1 x NVIDIA H100 80GB HBM3 is here: scale node, on machine {name}" in here
    assert (project.folder / f"config/machines/{name}.yaml").is_file()

    command = re.search(r"^snakemake (.*)$", here, re.MULTILINE)
    assert command is not None
    planned = project.must("snakemake", *shlex.split(command[1]), "-n", "-p", **seen)
    assert f"results/{name}/node/studies/batch_and_precision" in planned
    trained = re.search(r"^train +(\d+)$", planned, re.MULTILINE)
    assert trained is not None
    assert int(trained[1]) >= 12
