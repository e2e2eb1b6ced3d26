"""`python -m tests.soak.profiles slurm|sge|pbs|allocation`, as root: a small study through a profile as it is shipped.

Slurm and Grid Engine are brought up in a private box; `pbs` needs a server that is here (tests/cluster/pbs_here.py).
Prints what doctor, the plan and the driver say; the home of the box's user is written as `~`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cluster.box import Box
from tests.cluster.pbs_here import PbsHere
from tests.cluster.sge_box import SgeBox
from tests.cluster.slurm_box import SlurmBox
from tests.cluster.try_box import ROOT, command_of, copy_of_project

BOXES = {"slurm": SlurmBox, "sge": SgeBox, "pbs": PbsHere, "allocation": SlurmBox}
RUNS = 3
STUDY = """\
question: Does the cluster way lead to a figure?
base:
  model: small_cnn
  data: {source: digits}
  strategy: allreduce
  ranks_per_node: 2
  batch: {per_rank: 32}
  optimiser: {learning_rate: 0.05}
  train: {epochs: 4}
vary:
  ranks: [1, 2, 4]
scales:
  mini: {}
figures:
  - {kind: time_over_ranks, name: time}
tables:
  - {name: times, values: [throughput_samples_per_s, accuracy]}
"""
MACHINE = """\
description: "A box on one machine: two nodes of 16 CPUs and 4 devices, which are a fiction"
nodes: 2
devices_per_node: 4
device: cpu
cores_per_node: 16
memory_gib: 3.9
job_memory_gib: 3
walltime_limit_h: 1
sources: {description: tests/cluster}
"""


def run_study(box: Box, name: str) -> bool:
    """Doctor, plan and study through one profile; whether every run ended well and the figure is there."""
    clone = copy_of_project(box)
    (clone / "config" / "studies" / "through.yaml").write_text(STUDY)
    (clone / "config" / "machines" / "box.yaml").write_text(MACHINE)
    profile = ("--profile", f"profiles/{name}")
    inside = ("salloc", "-Q", "-N", "2", "--exclusive") if name == "allocation" else ()
    shown(box, clone, *inside, "scalestudy", "doctor", *profile, "--config", "machine=box")
    shown(box, clone, "scalestudy", "plan", *profile, "--config", "machine=box", "studies=through")
    # All nodes are one host here, and measured runs run alone.
    alone = () if inside else ("--resources", "measure=1")
    code = shown(box, clone, *inside, "snakemake", "through", *profile, "--config", "machine=box", *alone)
    results = [json.loads(path.read_text()) for path in clone.glob("results/box/runs/*/result.json")]
    for result in results:
        links = [link.get("job_id") for link in result.get("links", [])]
        print(result["id"], result["status"], "jobs", *links)
    figures = sorted(path.name for path in clone.glob("results/box/mini/figures/through/*"))
    print("figures", *figures)
    well = code == 0 and [result["status"] for result in results] == ["valid"] * RUNS and "time.svg" in figures
    print("well" if well else "NOT WELL")
    return well


def shown(box: Box, clone: Path, *words: str) -> int:
    """Run a command in the clone as the box's user, and print it with what it says; its exit status."""
    print(f"\n$ {' '.join(words)}", flush=True)
    done = subprocess.run(
        command_of(box, clone, *words),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    said = done.stdout
    for path, name in (
        (clone, "~/scalestudy"),
        (box.home, "~"),
        (Path(sys.prefix), ".venv"),
        (ROOT, "."),
        (box.folder, "BOX"),
    ):
        said = said.replace(str(path), name)
    print(said, end="", flush=True)
    if done.returncode:
        print(f"exit status {done.returncode}")
    return done.returncode


def main() -> int:
    """Bring it up, run, take it down; exit status 1 if it was not well."""
    (name,) = sys.argv[1:]
    box = BOXES[name](ROOT)
    try:
        return 0 if run_study(box, name) else 1
    finally:
        box.stop()


if __name__ == "__main__":
    sys.exit(main())
