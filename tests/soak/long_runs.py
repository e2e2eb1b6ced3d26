"""Backtest of the extrapolated training time over factors of 10 to 10,000, on recorded steps of real runs.

    python -m tests.soak.long_runs record --out FOLDER [--minutes 24]
    python -m tests.soak.long_runs pack FOLDER [tests/data/long_runs.npz]
    python -m tests.soak.long_runs judge [tests/data/long_runs.npz]

`record` trains small networks on this CPU and networks on emulated accelerators, on one rank and on two that exchange,
through the trainer itself, each for some minutes, two runs side by side; whatever else the machine does is part of what
is recorded. `pack` cuts each run into stretches. The first part of a stretch is a window, the stretch is the whole that
is extrapolated from it, and their ratio the factor. `judge` extrapolates every stretch from its window by the code that
makes a result. Half of the workloads were used to choose the constants of results/extrapolate.py, the gate is judged on
the others. pytest replays the recording that is kept in tests/data/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import tempfile
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy.spec.run import RunSpec

RECORDING = Path(__file__).resolve().parents[1] / "data" / "long_runs.npz"
NEEDED = 0.90
"""The lower bound of the coverage must reach this, where 0.95 is claimed: with 150 cases, as 142 (94.7 %) do."""

SMALL = {"name": "mlp", "layers": 2, "hidden": 32}
PICTURES = {"source": "synthetic_jpeg", "samples": 256, "width": 160, "height": 120, "mean_kib": 10}


@dataclass(frozen=True)
class Workload:
    """One run: its name, its spec without what all have, how many minutes of 24, and whether constants were chosen on it."""

    name: str
    spec: dict[str, Any]
    minutes: float
    fitted: bool


LANES = (
    (
        Workload("mlp on digits", {"model": SMALL, "data": {"source": "digits"}}, 12, True),
        Workload("small_cnn on digits", {"model": "small_cnn", "data": {"source": "digits"}}, 12, False),
    ),
    (
        Workload("resnet50 on an emulated v100, JPEG", {
            "model": "resnet50", "device": "emulated:v100", "batch": {"per_rank": 4}, "data": PICTURES}, 5, True),
        Workload("mlp on digits, 2 ranks, ring", {
            "model": SMALL, "data": {"source": "digits"}, "ranks": 2, "strategy": "ring"}, 4, True),
        Workload("small_cnn on digits, 2 ranks, halving-doubling", {
            "model": "small_cnn", "data": {"source": "digits"}, "ranks": 2, "strategy": "halving_doubling"}, 4, False),
        Workload("alexnet on an emulated v100, JPEG", {
            "model": "alexnet", "device": "emulated:v100", "batch": {"per_rank": 16}, "data": PICTURES}, 5, False),
        Workload("inception_v3 on an emulated v100, 2 ranks, all-reduce", {
            "model": "inception_v3", "device": "emulated:v100", "batch": {"per_rank": 2}, "ranks": 2,
            "strategy": "allreduce", "data": {"source": "synthetic", "samples": 4096, "shape": [3, 80, 80]}}, 6, False),
    ),
)  # fmt: skip
"""What runs side by side, one after the other in each lane."""


# Recording


def make(workload: Workload, share: float, out: Path) -> None:
    """Train one workload for `share` of its minutes, and keep the seconds from each step to the next."""
    import pandas as pd

    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.launch import launch
    from scalestudy.spec.config import Site
    from scalestudy.spec.machine import Machine

    spec = RunSpec.model_validate_json(json.dumps({
        "batch": {"per_rank": 16}, "loader": {"workers": 1}, "optimiser": {"learning_rate": 0.001},
        "threads_per_rank": 1, "train": {"epochs": 1_000_000, "evaluate_every_epochs": 0},
        "measure": {"warmup_steps": 20, "minutes": workload.minutes * share}, **workload.spec,
    }))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "data" / "manifest.json"
        prepare(spec.data, manifest, None, Site())
        result = launch.run("long-run", spec, manifest, Path(folder) / "result.json", Machine())
        steps = pd.read_parquet(Path(folder) / "steps.parquet", columns=["rank", "step", "begin_s"])
    assert result["status"] == "valid", result["reason"]
    begins = steps[steps["rank"] == 0].sort_values("step")["begin_s"].to_numpy()
    np.savez(out, intervals=np.diff(begins)[20:].astype(np.float32))
    print(f"{workload.name}: {len(begins)} steps in {begins[-1]:.0f} s", flush=True)


def record(folder: Path, minutes: float) -> None:
    """All workloads, one process per lane that makes its runs one after the other."""
    from scalestudy.launch.preload import preload

    preload()
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    lanes: list[BaseProcess] = [context.Process(target=_lane, args=(lane, minutes / 24, folder)) for lane in LANES]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


def _lane(lane: tuple[Workload, ...], share: float, folder: Path) -> None:
    for workload in lane:
        make(workload, share, folder / f"{_number(workload)}.npz")


def _number(workload: Workload) -> int:
    return list(itertools.chain.from_iterable(LANES)).index(workload)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--minutes", type=float, default=24.0)
    arguments = parser.parse_args()
    record(arguments.out, arguments.minutes)


if __name__ == "__main__":
    main()
