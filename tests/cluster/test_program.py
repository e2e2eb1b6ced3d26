"""A study of a user's own script on a real Slurm: planned, run on two nodes, reported."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import QUICK, studies
from tests.cluster.workflow import ROOT

CALL_S = 600
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * CALL_S)]
STUDY = """\
question: How fast is my script here?
base:
  program:
    command: >-
      python -m torch.distributed.run --nnodes {nodes} --node-rank {node_rank} --nproc-per-node {ranks_per_node}
      --master-addr {master_addr} --master-port {master_port} train.py 100000
    files: [train.py]
    resume: true
    once_per: node
  ranks_per_node: 2
  measure: {warmup_steps: 5, steps: 60}
vary: {ranks: [4]}
scales: {mini: {}}
tables: [{name: speed, values: [throughput_samples_per_s, wall_s]}]
"""


def test_a_script_is_planned_run_and_reported_on_two_nodes(slurm: SlurmBox) -> None:
    made = studies(slurm, STUDY, "two_nodes")
    shutil.copyfile(ROOT / "tests/stand_ins/resuming.py", made.clone / "train.py")
    (made.clone / "train.py").chmod(0o644)  # the box's user reads it
    of_box = ("--profile", "profiles/slurm", "--config", "machine=box", "scale=mini", "studies=through")
    assert re.search(r"^train +1$", made.must("snakemake", "all", "-n", *of_box), re.MULTILINE)
    made.must("snakemake", "all", *QUICK, *of_box, timeout=CALL_S)
    [two] = made.results()
    assert two["status"] == "valid"
    text = (made.clone / "results/box/mini/tables/through/speed.md").read_text()
    assert re.search(r"\| \\\*[\d,.]+†? \|", text), "the throughput is marked as reported"
    assert two["launch"]["launcher"] == "srun" and len(set(two["launch"]["hosts"])) == 2
    assert two["metrics"]["throughput_samples_per_s"] * two["metrics"]["step_time_s"] == pytest.approx(4 * 8)
    assert (made.clone / "results/box/mini/report.html").exists()
