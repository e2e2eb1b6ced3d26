"""Every node of a cluster, and every pair, measured by name on a real Slurm."""

from __future__ import annotations

import json
import re

import pytest

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import MACHINE, studies

pytestmark = pytest.mark.slow

STUDY = """\
question: Is each node of the box as fast as the others?
base:
  model: {name: mlp, hidden: 16, layers: 2}
  data: {source: digits}
  strategy: allreduce
  ranks_per_node: 1
  train: {epochs: 12, evaluate_every_epochs: 0}
vary: {nodes: each}
include: [{nodes: pairs}]
scales: {mini: {}}
"""


def test_each_node_and_each_pair_is_a_job_on_these_nodes_and_no_others(slurm: SlurmBox) -> None:
    machine = MACHINE.replace("nodes: 2\n", "nodes: 4\nhosts: [node4, node2]\n")
    made = studies(slurm, STUDY, "every_node", machine)
    with open(made.clone / "profiles/slurm/site.yaml", "a") as site:
        site.write("prepare: driver\n")
    slurm_of = ("--profile", "profiles/slurm", "--config", "machine=box", "scale=mini")
    made.must("snakemake", "through", *slurm_of, "--jobs", "3", "--seconds-between-status-checks", "2")
    results = made.results()
    assert {",".join(result["spec"]["hosts"]) for result in results} == {"node4", "node2", "node4,node2"}
    assert {result["status"] for result in results} == {"valid"}
    pairs = [result for result in results if len(result["spec"]["hosts"]) == 2]
    assert all(result["launch"]["hosts"] == sorted(result["spec"]["hosts"]) for result in pairs)
    runs = {line["name"]: line["job"].split()[-1] for line in made.events("submitted")}
    assert len(runs) == 3  # the driver has prepared the data
    for line in made.events("id"):
        spec = made.clone / f"results/box/runs/{runs[line['name']]}/spec.json"
        job = slurm.must(["scontrol", "-o", "show", "job", line["id"]])
        found = re.search(r" NodeList=(\S+)", job)
        assert found is not None, job
        nodes = slurm.must(["scontrol", "show", "hostnames", found[1]]).split()
        assert sorted(nodes) == sorted(json.loads(spec.read_text())["hosts"])
