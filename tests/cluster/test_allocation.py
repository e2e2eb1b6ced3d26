"""`profiles/allocation` in one job of a real Slurm: several runs at the same time, none on a node that another one has."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from typing import Any

import pytest

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import MACHINE
from tests.cluster.try_box import command_of, copy_of_project

pytestmark = pytest.mark.slow

STUDY = """\
question: Do runs share the nodes of one job, and no node?
base:
  model: {name: mlp, hidden: 16, layers: 2}
  data: {source: digits}
  strategy: allreduce
  ranks_per_node: 1
  train: {epochs: 4, evaluate_every_epochs: 0}
  faults: [{kind: slow_rank, rank: 0, seconds: 0.02}]
vary: {ranks: [1, 3]}
# Wherever in their order the wide run comes, two of the others are side by side.
include: [{ranks: 1, seed: 7}, {ranks: 1, seed: 9}]
scales: {mini: {}}
"""


def test_runs_of_one_job_go_on_at_the_same_time_on_nodes_of_their_own(slurm: SlurmBox) -> None:
    clone = copy_of_project(slurm, "pilot")
    for name, text in (("machines/box", MACHINE.replace("nodes: 2\n", "nodes: 3\n")), ("studies/pilot", STUDY)):
        file = clone / f"config/{name}.yaml"
        file.write_text(text)
        os.chown(file, clone.stat().st_uid, clone.stat().st_gid)
    inside = ("salloc", "-Q", "-w", "node[1-3]", "--exclusive", "snakemake", "pilot")
    done = subprocess.run(
        command_of(slurm, clone, *inside, "--profile", "profiles/allocation", "--config", "machine=box"),
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

    results = [json.loads(file.read_text()) for file in clone.glob("results/box/runs/*/result.json")]
    assert [result["status"] for result in results] == ["valid"] * 4
    assert all(result["instrument"]["torch"] for result in results)  # the ranks say it: who starts them has no torch
    at_once = 0
    for one, other in itertools.combinations(results, 2):
        if one["started"] < other["ended"] and other["started"] < one["ended"]:
            at_once += 1
            assert not set(nodes_of(one)) & set(nodes_of(other)), (one["run"], other["run"])
    assert at_once
    assert {len(nodes_of(result)) for result in results if "node1" in nodes_of(result)} == {3}


def nodes_of(result: dict[str, Any]) -> list[str]:
    """Where a run was."""
    nodes: list[str] = result["launch"]["hosts"]
    return nodes
