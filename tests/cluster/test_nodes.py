"""Every node of a cluster, and every pair, measured by name on a real Slurm."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.cluster.slurm_box import SlurmBox
from tests.cluster.study import MACHINE
from tests.cluster.try_box import command_of, copy_of_project

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
    files = {"config/machines/box.yaml": machine, "config/studies/nodes.yaml": STUDY}
    clone = copy_of_project(slurm, "every_node", files)

    def call(*words: str, timeout: float = 280) -> tuple[int, str]:
        done = subprocess.run(
            command_of(slurm, clone, *words), capture_output=True, text=True, timeout=timeout, check=False
        )
        return done.returncode, done.stdout + done.stderr

    status, said = call("scalestudy", "doctor", "--hosts", "--profile", "profiles/slurm")
    assert status == 0 and said.startswith('hosts: ["node[1-4]"]\n'), said
    with open(clone / "profiles/slurm/site.yaml", "a") as site:
        site.write("prepare: driver\n")
    slurm_of = ("--profile", "profiles/slurm", "--config", "machine=box", "scale=mini")
    status, said = call("snakemake", "nodes", *slurm_of, "--jobs", "3", "--seconds-between-status-checks", "2")
    assert status == 0, said
    hosts_of = {"node4", "node2", "node4,node2"}
    results = [json.loads(file.read_text()) for file in clone.glob("results/box/runs/*/result.json")]
    assert {",".join(result["spec"]["hosts"]) for result in results} == hosts_of
    assert {result["status"] for result in results} == {"valid"}
    pairs = [result for result in results if len(result["spec"]["hosts"]) == 2]
    assert all(result["launch"]["hosts"] == sorted(result["spec"]["hosts"]) for result in pairs)
    lines = [json.loads(line) for line in (clone / ".scalestudy/jobs.jsonl").read_text().splitlines()]
    runs = {line["name"]: line["job"].split()[-1] for line in lines if line["event"] == "submitted"}
    assert len(runs) == 3  # the driver has prepared the data
    for line in lines:
        if line["event"] == "id":
            spec = clone / f"results/box/runs/{runs[line['name']]}/spec.json"
            job = slurm.must(["scontrol", "-o", "show", "job", line["id"]])
            found = re.search(r" NodeList=(\S+)", job)
            assert found is not None, job
            nodes = slurm.must(["scontrol", "show", "hostnames", found[1]]).split()
            assert sorted(nodes) == sorted(json.loads(spec.read_text())["hosts"])
