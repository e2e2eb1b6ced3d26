"""A study of a user's own script on real schedulers: planned, run on one node and on two, over two walltimes, reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.box import Box
from tests.cluster.sge_box import SgeBox
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import MACHINE, ranks
from tests.cluster.try_box import command_of, copy_of_project
from tests.cluster.workflow import ROOT

# On a busy machine a job of a minute does less of its chain: what takes 90 s alone has taken five minutes.
CALL_S = 900
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * CALL_S)]
PROGRAM = """\
question: How fast is my script on two nodes?
base:
  program:
    command: "python -m torch.distributed.run --nnodes {nodes} --node-rank {node_rank} --nproc-per-node {ranks_per_node}
      --master-addr {master_addr} --master-port {master_port} train.py 100000"
    files: [train.py]
    resume: true
  ranks_per_node: 2
  measure: {warmup_steps: 5, steps: 60}
scales: {mini: {}}
tables: [{name: speed, values: [throughput_samples_per_s, wall_s]}]
"""
QUICK = ("--latency-wait", "15", "--seconds-between-status-checks", "2", "--resources", "measure=1")


def run_study(box: Box, profile: str, variations: str, runs: int) -> tuple[Path, list[dict[str, Any]]]:
    """Plan the study and run it in jobs of a minute; returns its results, those of the fewest steps and ranks first."""
    clone = copy_of_project(box, "own_script")
    for name, text in (("config/machines/box.yaml", MACHINE), ("config/studies/script.yaml", PROGRAM + variations)):
        (clone / name).write_text(text)
    shutil.copy(ROOT / "tests/stand_ins/resuming.py", clone / "train.py")
    for file in ("config/machines/box.yaml", "config/studies/script.yaml", "train.py"):
        os.chown(clone / file, clone.stat().st_uid, clone.stat().st_gid)
    of_box = ("--profile", f"profiles/{profile}", "--config", "machine=box", "scale=mini", "studies=script")

    def call(*words: str) -> str:
        command = command_of(box, clone, *words, *of_box)
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert re.search(rf"^train +{runs}$", call("snakemake", "all", "-n"), re.MULTILINE)
    call("snakemake", "all", "--set-resources", "train:runtime=1", *QUICK)
    found = [json.loads(file.read_text()) for file in clone.glob("results/box/runs/*/result.json")]
    assert [result["status"] for result in found] == ["valid"] * runs
    text = (clone / "results/box/mini/tables/script/speed.md").read_text()
    assert len(re.findall(r"\| \\\*[\d,.]+†? \|", text)) == runs, "each throughput is marked as reported"
    return clone, sorted(found, key=lambda result: (result["spec"]["measure"]["steps"], ranks(result)))


def assert_is_a_chain(result: dict[str, Any]) -> None:
    *stopped, _ = result["links"]
    assert {link["cause"] for link in stopped} == {"because its command ended with status 75"}
    assert len({link["job"] for link in result["links"]}) == len(result["links"]) > 1
    assert sum(link["steps"] for link in result["links"]) >= 605


def test_a_script_is_planned_run_and_reported_also_over_two_walltimes(slurm: SlurmBox) -> None:
    variations = "vary: {ranks: [2, 4]}\ninclude: [{ranks: 2, measure.steps: 600}]\n"
    clone, [one, two, long] = run_study(slurm, "slurm", variations, 3)
    assert [ranks(result) for result in (one, two, long)] == [2, 4, 2]
    assert two["launch"]["launcher"] == "srun" and len(set(two["launch"]["hosts"])) == 2
    assert two["metrics"]["throughput_samples_per_s"] * two["metrics"]["step_time_s"] == pytest.approx(4 * 8)
    assert_is_a_chain(long)
    assert (clone / "results/box/mini/report.html").exists()


def test_a_script_goes_on_over_two_walltimes_of_grid_engine(sge: SgeBox) -> None:
    _, [long] = run_study(sge, "sge", "vary: {measure.steps: [600], ranks: [2]}\n", 1)
    assert_is_a_chain(long)
