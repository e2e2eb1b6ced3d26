"""A study of a user's own script on a real Slurm: planned, run on one node and on two, over two walltimes, reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import MACHINE, ranks
from tests.cluster.try_box import command_of, copy_of_project
from tests.cluster.workflow import ROOT

pytestmark = pytest.mark.slow

STUDY = """\
question: How fast is my script on two nodes?
base:
  program:
    command: "python -m torch.distributed.run --nnodes {nodes} --node-rank {node_rank} --nproc-per-node {ranks_per_node}
      --master-addr {master_addr} --master-port {master_port} train.py 100000"
    files: [train.py]
    resume: true
  ranks_per_node: 2
  measure: {warmup_steps: 5, steps: 60}
vary: {ranks: [2, 4]}
include: [{ranks: 2, measure.steps: 600}]
scales: {mini: {}}
tables: [{name: speed, values: [throughput_samples_per_s, wall_s]}]
"""


def test_a_script_is_planned_run_and_reported_also_over_two_walltimes(slurm: SlurmBox) -> None:
    clone = copy_of_project(slurm, "own_script")
    for name, text in (("config/machines/box.yaml", MACHINE), ("config/studies/script.yaml", STUDY)):
        (clone / name).write_text(text)
    shutil.copy(ROOT / "tests/stand_ins/resuming.py", clone / "train.py")
    for file in ("config/machines/box.yaml", "config/studies/script.yaml", "train.py"):
        os.chown(clone / file, clone.stat().st_uid, clone.stat().st_gid)
    of_box = ("--profile", "profiles/slurm", "--config", "machine=box", "scale=mini", "studies=script")

    def call(*words: str) -> str:
        command = command_of(slurm, clone, *words, *of_box)
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    quick = ("--latency-wait", "15", "--seconds-between-status-checks", "2", "--resources", "measure=1")
    assert re.search(r"^train +3$", call("snakemake", "all", "-n"), re.MULTILINE)
    call("snakemake", "all", "--set-resources", "train:runtime=1", *quick)

    found = [json.loads(file.read_text()) for file in clone.glob("results/box/runs/*/result.json")]
    one, two, long = sorted(found, key=lambda result: (result["spec"]["measure"]["steps"], ranks(result)))
    assert [result["status"] for result in (one, two, long)] == ["valid"] * 3
    assert [ranks(result) for result in (one, two, long)] == [2, 4, 2]
    assert two["launch"]["launcher"] == "srun" and len(set(two["launch"]["hosts"])) == 2
    assert two["metrics"]["throughput_samples_per_s"] * two["metrics"]["step_time_s"] == pytest.approx(4 * 8)
    *stopped, _ = long["links"]
    assert {link["cause"] for link in stopped} == {"because its command ended with status 75"}
    assert len({link["job"] for link in long["links"]}) == len(long["links"]) > 1
    assert sum(link["steps"] for link in long["links"]) >= 605
    text = (clone / "results/box/mini/tables/script/speed.md").read_text()
    assert len(re.findall(r"\| \\\*[\d,.]+†? \|", text)) == 3, "each throughput is marked as reported"
    assert (clone / "results/box/mini/report.html").exists()
