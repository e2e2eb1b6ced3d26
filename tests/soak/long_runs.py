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
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from scalestudy.results.extrapolate import LEAST_STEPS, training_time
from scalestudy.spec.run import RunSpec

RECORDING = Path(__file__).resolve().parents[1] / "data" / "long_runs.npz"
NEEDED = 0.85
"""The lower bound of the coverage must reach this, where 0.95 is claimed. With 120 cases, intervals of that coverage pass in
98 of 100 recordings, and intervals of a coverage of 0.85 in 5; a bound of 0.90 would fail good ones in 4 of 10."""

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


# Cutting into stretches

FACTORS = (10, 30, 100, 300, 1000, 3000, 10_000)
LEAST_WINDOW_S = 0.2
"""A run whose window is shorter is invalid (results/validity.py)."""
VALID_UP_TO = 1000
"""Beyond this factor the runs are too short for valid windows: shorter ones are recorded and shown, and not judged on."""
MOST_STORED = 4000
"""Steps of a window that are stored."""
STRETCHES = 12
"""Of each run and factor, as many as fit, one after the other, but no more than this."""


def stretches(intervals: NDArray[np.float32]) -> Iterator[tuple[int, int, int]]:
    """First step, steps of the window, and factor: the whole has factor times as many steps, and none is in two wholes.

    Windows are as long as lets STRETCHES wholes fit into the run, but no shorter than a valid run's, up to VALID_UP_TO.
    """
    ends = np.cumsum(intervals, dtype=np.float64)
    for factor in FACTORS:
        begin, found = 0, 0
        longest = min(len(intervals) // (STRETCHES * factor), MOST_STORED)
        while found < STRETCHES:
            before = ends[begin - 1] if begin else 0.0
            shortest = int(np.searchsorted(ends, before + LEAST_WINDOW_S)) + 1 - begin if factor <= VALID_UP_TO else 0
            window = max(LEAST_STEPS, shortest, longest)
            if begin + window * factor > len(intervals):
                break
            yield begin, window, factor
            begin, found = begin + window * factor, found + 1


def pack(folder: Path, file: Path) -> None:
    """One file of all stretches: the seconds of the window's steps, and the seconds of the whole."""
    windows: list[NDArray[np.float32]] = []
    rows: list[tuple[int, int, int, float]] = []
    for number, _ in enumerate(itertools.chain.from_iterable(LANES)):
        with np.load(folder / f"{number}.npz") as recorded:
            intervals = recorded["intervals"]
        for begin, window, factor in stretches(intervals):
            windows.append(intervals[begin : begin + window])
            whole_s = float(intervals[begin : begin + window * factor].sum(dtype=np.float64))
            rows.append((number, window, factor, whole_s))
    table = np.array(rows, [("workload", "u1"), ("window", "u4"), ("factor", "u4"), ("whole_s", "f8")])
    np.savez_compressed(file, table=table, windows=np.concatenate(windows))


# Judging


@dataclass(frozen=True)
class Judged:
    """What was said of a stretch after its window, and what it took."""

    workload: Workload
    factor: int
    window_s: float
    true_s: float
    value_s: float
    low_s: float
    high_s: float

    @property
    def counts(self) -> bool:
        """Whether it is judged on: no constant was chosen on its workload, and its window is a valid run's."""
        return not self.workload.fitted and self.factor <= VALID_UP_TO

    @property
    def holds(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low_s <= self.true_s <= self.high_s


def judge(file: Path = RECORDING) -> list[Judged]:
    """Every stretch, extrapolated from its window by the code that makes a result: as of a disturbed run."""
    judged, workloads = [], list(itertools.chain.from_iterable(LANES))
    with np.load(file) as recorded:
        table, windows = recorded["table"], recorded["windows"].astype(np.float64)
    for row, window in zip(table, np.split(windows, np.cumsum(table["window"])[:-1]), strict=True):
        factor, window_s = int(row["factor"]), float(window.sum())
        found = training_time(window_s, window, len(window) * (factor - 1), [], disturbed=True)
        assert found.low is not None and found.high is not None
        whole_s = float(row["whole_s"])
        judged.append(Judged(workloads[row["workload"]], factor, window_s, whole_s, found.value, found.low, found.high))
    return judged


def least_coverage(judged: list[Judged]) -> float:
    """The lower end of the one-sided 95 % interval of the coverage (Clopper and Pearson 1934)."""
    held = sum(each.holds for each in judged)
    return float(beta.ppf(0.05, held, len(judged) - held + 1)) if held else 0.0


def print_judged(judged: list[Judged]) -> bool:
    """A line per half and factor, and the verdict; returns whether the backtest is passed."""
    for fitted, name in ((True, "constants were chosen on"), (False, "judged on")):
        half = [each for each in judged if each.workload.fitted is fitted]
        for factor in FACTORS:
            here = [each for each in half if each.factor == factor]
            if here:
                wide = float(np.median([each.high_s / each.value_s for each in here]))
                print(f"{name:24} factor {factor:6,}: {sum(each.holds for each in here):3} of {len(here):3} hold; median upper end {wide:.2f} times the value")  # fmt: skip
        valid = [each for each in half if each.factor <= VALID_UP_TO]
        print(f"{name:24} up to {VALID_UP_TO:,}:   {sum(each.holds for each in valid):3} of {len(valid):3} hold; coverage at least {least_coverage(valid):.3f}")  # fmt: skip
    passed = least_coverage([each for each in judged if each.counts]) >= NEEDED
    print(f"{'passed' if passed else 'NOT passed'}: {NEEDED} is needed; windows of {min(each.window_s for each in judged):.2f} to {max(each.window_s for each in judged):.0f} s, wholes of up to {max(each.true_s for each in judged):.0f} s")  # fmt: skip
    return passed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--minutes", type=float, default=24.0)
    packing = verbs.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("file", type=Path, nargs="?", default=RECORDING)
    verbs.add_parser("judge").add_argument("file", type=Path, nargs="?", default=RECORDING)
    arguments = parser.parse_args()
    if arguments.verb == "record":
        record(arguments.out, arguments.minutes)
        return
    if arguments.verb == "pack":
        pack(arguments.folder, arguments.file)
    raise SystemExit(0 if print_judged(judge(arguments.file)) else 1)


if __name__ == "__main__":
    main()
