"""A fake results tree: made-up numbers in the form of real results, so that analysis and figures can be tested."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Run, Study

MACHINE = "fake"

INSTRUMENT = {"code": "c0de", "torch": "2.0", "python": "3.11", "cpu": "a CPU", "cores": 2, "memory_gib": 8.0}

SCALING = """
question: Does it scale?
source: nowhere, Fig. 1
base:
  model: small_cnn
  data: {source: digits}
  batch: {per_rank: 32}
  train: {epochs: 15}
vary:
  strategy: [{value: allreduce, label: "ring & all_reduce"}, parameter_server]
  ranks: [1, 2]
repeats: 3
figures:
  - {kind: time_over_ranks, name: time, title: Time <of> training, reference: tsubame_resnet50}
  - {kind: throughput_over_ranks, name: throughput}
  - {kind: efficiency}
  - {kind: accuracy_over_time, name: accuracy}
  - {kind: lines, name: exchange, x: strategy, y: exchange_s, series: ranks}
tables:
  - {name: times, title: Times & rates, values: [training_time_s, throughput_samples_per_s, efficiency]}
"""


def read_study(folder: Path, text: str = SCALING, name: str = "scaling") -> Study:
    """The study of that text, at scale paper."""
    studies = folder / "config" / "studies"
    studies.mkdir(parents=True, exist_ok=True)
    (studies / f"{name}.yaml").write_text(text, encoding="utf-8")
    return read_studies([name], "paper", Machine(), folder=studies, machine_name=MACHINE)[0]


def study_in(folder: Path) -> Study:
    """The study of SCALING, with its published numbers, in a folder."""
    reference = folder / "config/reference"
    reference.mkdir(parents=True)
    shutil.copy(Path(__file__).resolve().parents[3] / "config/reference/tsubame_resnet50.csv", reference)
    return read_study(folder)


def throughput_of(run: Run) -> float:
    """100 samples/s on one rank, 160 on two, 1 more in each repeat; a parameter server has half."""
    rate = {1: 100.0, 2: 160.0}.get(run.spec.ranks, 50.0 * run.spec.ranks) + run.spec.repeat
    return rate / 2 if run.spec.strategy.name == "parameter_server" else rate


def result_of(run: Run, **changes: Any) -> dict[str, Any]:
    """A valid result whose metrics follow from `throughput_of`; `changes` replace what they name."""
    rate = changes.pop("throughput_samples_per_s", throughput_of(run))
    metrics = {
        "throughput_samples_per_s": rate,
        "epoch_time_s": 1000 / rate,
        "training_time_s": 15_000 / rate,
        "exchange_s": 0.5,
        "wall_s": 10.0,
        **changes.pop("metrics", {}),
    }
    return {
        "run": run.id,
        "status": "valid",
        "reason": None,
        "spec": run.spec.to_dict(),
        "metrics": metrics,
        "kinds": {},
        "emulated": run.spec.accelerator is not None,
        "oversubscribed": False,
        "evaluations": [
            {
                "epoch": epoch,
                "step": epoch * 10,
                "time_s": epoch * 1000 / rate,
                "accuracy": 0.5 + 0.1 * epoch,
                "auroc": None,
            }
            for epoch in (1, 2, 3)
        ],
        "instrument": INSTRUMENT,
        **changes,
    }


def write_results(study: Study, change: Callable[[Run], dict[str, Any] | None] = lambda run: {}) -> None:
    """One result per run; what `change` gives for a run replaces parts of it, None leaves the result out."""
    for run in study.runs:
        changes = change(run)
        if changes is not None:
            write_result(result_file(MACHINE, run.id), result_of(run, **changes))
