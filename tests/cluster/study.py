"""A small study through a profile as it is shipped, from its YAML file to its figure, for any scheduler here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.box import USER, Box
from tests.cluster.try_box import copy_of_project, environment_in
from tests.cluster.workflow import ROOT, python_below

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
THROUGH = """\
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
PROGRAM = """\
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
"""Of a user's own script, on two nodes."""
QUICK = ("--latency-wait", "15", "--seconds-between-status-checks", "2", "--resources", "measure=1")


@dataclass(frozen=True)
class Studies:
    """A clone of the project that the box's user owns, with the study and a machine of the box's size."""

    box: Box
    clone: Path

    def run(self, *words: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        """Run a command in the clone as the box's user; standard error comes with standard output."""
        return self.box.run(words, USER, self.clone, timeout, **environment_in(self.box, self.clone))

    def must(self, *words: str, timeout: float = 280) -> str:
        """What a command says that has to succeed."""
        done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start_killed(self, log: Path, *words: str) -> None:
        """Start a driver, and kill it as soon as it has submitted a run and noted its id."""
        ledger = self.clone / ".scalestudy/jobs.jsonl"
        command = self.box.command(words, USER, self.clone, **environment_in(self.box, self.clone))
        with (
            open(log, "w") as stream,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream) as process,
        ):
            end = time.monotonic() + 90
            while not re.search(r'"submitted", "name": "train\.', ledger.read_text() if ledger.exists() else ""):
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            os.kill(python_below(process.pid), signal.SIGKILL)

    def results(self, study: str = "through") -> list[dict[str, Any]]:
        """Results of a study's runs, in the order of their ranks."""
        index = json.loads((self.clone / f"results/box/mini/studies/{study}/study.json").read_text())
        found = [json.loads(path.read_text()) for path in self.clone.glob("results/box/runs/*/result.json")]
        return sorted((result for result in found if result["run"] in json.dumps(index)), key=ranks)

    def left(self) -> str:
        """List the executor's ledger and all files of results, for the message of a failure."""
        files = sorted(path for path in self.clone.glob("results/box/**/*") if path.is_file())
        listed = [f"{path.stat().st_mtime:.3f} {path.stat().st_size} {path.relative_to(self.clone)}" for path in files]
        return "\n".join([(self.clone / ".scalestudy/jobs.jsonl").read_text(), *listed])

    def events(self, event: str) -> list[dict[str, Any]]:
        """Lines of the executor's own account."""
        lines = [json.loads(line) for line in (self.clone / ".scalestudy/jobs.jsonl").read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def job_ids(self, run: str) -> list[str]:
        """The scheduler's ids of the jobs of one run."""
        return [line["id"] for line in self.events("submitted") if line["job"].endswith(run)]

    def drawn(self) -> list[str]:
        """Names of the study's figures and tables."""
        return sorted(path.name for path in self.clone.glob("results/box/mini/*/through/*"))


def ranks(result: dict[str, Any]) -> int:
    """Of a run; a spec leaves defaults out."""
    return int(result["spec"].get("ranks", 1))


def studies(box: Box, through: str = THROUGH) -> Studies:
    """Set it up; `through` is the text of the study. There are the study of a program, and its script, too."""
    files = {"config/machines/box.yaml": MACHINE, "config/studies/through.yaml": through,
             "config/studies/program.yaml": PROGRAM,
             "train.py": (ROOT / "tests/stand_ins/resuming.py").read_text()}  # fmt: skip
    return Studies(box, copy_of_project(box, files))
