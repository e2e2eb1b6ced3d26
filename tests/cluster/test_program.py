"""A study of a user's own script on a real Slurm: planned, run on two nodes, and over two walltimes, reported."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import QUICK, Studies, studies
from tests.cluster.workflow import ROOT

CALL_S = 600
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * CALL_S)]
STUDY = """\
question: How fast is my script here?
base:
  program: {{command: "{command} train.py 100000", files: [train.py], resume: true, once_per: {once_per}}}
  ranks_per_node: 2
  measure: {{warmup_steps: 5, steps: 60}}
vary: {{{vary}}}
scales: {{mini: {{}}}}
tables: [{{name: speed, values: [throughput_samples_per_s, wall_s]}}]
"""
TORCHRUN = (
    "python -m torch.distributed.run --nnodes {nodes} --node-rank {node_rank} --nproc-per-node {ranks_per_node} "
    "--master-addr {master_addr} --master-port {master_port}"
)


def run_study(slurm: SlurmBox, study: str, folder: str, *options: str) -> tuple[Studies, dict[str, Any]]:
    """Plan a study of one run and run it; returns its clone and its result."""
    made = studies(slurm, study, folder)
    shutil.copyfile(ROOT / "tests/stand_ins/resuming.py", made.clone / "train.py")
    (made.clone / "train.py").chmod(0o644)  # the box's user reads it
    of_box = ("--profile", "profiles/slurm", "--config", "machine=box", "scale=mini", "studies=through")
    assert re.search(r"^train +1$", made.must("snakemake", "all", "-n", *of_box), re.MULTILINE)
    made.must("snakemake", "all", *options, *QUICK, *of_box, timeout=CALL_S)
    [result] = made.results()
    assert result["status"] == "valid"
    text = (made.clone / "results/box/mini/tables/through/speed.md").read_text()
    assert re.search(r"\| \\\*[\d,.]+†? \|", text), "the throughput is marked as reported"
    return made, result


def test_a_script_is_planned_run_and_reported_on_two_nodes(slurm: SlurmBox) -> None:
    study = STUDY.format(command=TORCHRUN, once_per="node", vary="ranks: [4]")
    made, two = run_study(slurm, study, "two_nodes")
    assert two["launch"]["launcher"] == "srun" and len(set(two["launch"]["hosts"])) == 2
    assert two["metrics"]["throughput_samples_per_s"] * two["metrics"]["step_time_s"] == pytest.approx(4 * 8)
    assert (made.clone / "results/box/mini/report.html").exists()


@pytest.mark.soak
def test_a_script_goes_on_over_two_walltimes(slurm: SlurmBox) -> None:
    # One process: what many take to start on a busy machine is most of a job's minute. That a script stops at its deadline and
    # goes on is in tests/integration/test_program.py, and that the executor submits it again in test_slurm.py.
    study = STUDY.format(command="python", once_per="rank", vary="measure.steps: [750]")
    _, long = run_study(slurm, study, "two_walltimes", "--set-resources", "train:runtime=1")
    *stopped, _ = long["links"]
    assert {link["cause"] for link in stopped} == {"because its command ended with status 75"}
    assert len({link["job"] for link in long["links"]}) == len(long["links"]) > 1
