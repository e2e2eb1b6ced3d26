"""A mini study from its YAML file to its figures, each run a job of its own, for any scheduler in a box."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.box import USER, Box
from tests.integration.project import make_project

PROFILE = """\
executor: scalestudy
scalestudy-site: site.yaml
jobs: 20
nolock: true
latency-wait: 20
seconds-between-status-checks: 2
config: [machine=local, site=site.yaml]
default-resources: [mem_mb=1500, runtime=10]
"""
STUDY = """\
question: Does the cluster way lead to a figure?
base:
  model: small_cnn
  data: {source: digits}
  strategy: allreduce
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 4}
vary:
  ranks: [1, 2]
scales:
  mini: {}
figures:
  - {kind: time_over_ranks, name: time}
tables:
  - {name: times, values: [throughput_samples_per_s, accuracy]}
"""


def make_figures(box: Box, site: dict[str, Any]) -> tuple[Path, int, str]:
    """The folder, the driver's exit status and its output."""
    project = make_project(box.home / "study")
    project.study.write_text(STUDY)
    profile = project.folder / "profiles" / "cluster"
    profile.mkdir()
    (profile / "config.yaml").write_text(PROFILE)
    (project.folder / "site.yaml").write_text(json.dumps({"scheduler": site}))
    owner = box.home.stat()
    for path in (project.folder, *project.folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    environment = {
        "HOME": str(box.home),
        "TMPDIR": "/tmp",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(project.folder / "workflow"),
        "XDG_CACHE_HOME": str(box.home / "cache"),
    }
    command = box.command(["snakemake", "--profile", "profiles/cluster", "tiny"], USER, project.folder, **environment)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    return project.folder, done.returncode, done.stdout


def check_figures(box: Box, site: dict[str, Any]) -> None:
    """Both runs are valid results of jobs of their own, and the figure is drawn from them."""
    folder, code, output = make_figures(box, site)
    assert code == 0, output
    results = [json.loads(path.read_text()) for path in folder.glob("results/local/runs/*/result.json")]
    assert [result["status"] for result in results] == ["valid", "valid"], output
    assert (folder / "results/local/mini/figures/tiny/time.svg").stat().st_size > 300
    lines = [json.loads(line) for line in (folder / ".scalestudy/jobs.jsonl").read_text().splitlines()]
    assert sum(line["event"] == "submitted" and line["job"].startswith("train ") for line in lines) == 2
