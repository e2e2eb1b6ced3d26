"""Backtest of the extrapolated training time: does the interval from the first tenth of a run hold its whole time?

    python -m tests.soak.extrapolation --out FOLDER

It trains 40 runs with emulated compute to their end, five at a time (they mostly wait; about 20 minutes on two cores with
nothing else to do, which are needed), through the trainer itself: networks on accelerators with published step times, with
steps that vary and are alike for a while, slow decoding, evaluations and checkpoints. It packs their step times, evaluations
and checkpoints into FOLDER/extrapolation.npz. Then it extrapolates each from its first tenth by the code that makes a result,
and compares with what was measured.
pytest replays the recording that is kept in tests/data/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import random
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy.data.manifest import Manifest, SplitInfo
from scalestudy.results.metrics import training_time
from scalestudy.results.records import Measured
from scalestudy.spec.run import RunSpec
from scalestudy.spec.step_times import emulated_step_time
from scalestudy.training.report import CheckpointCost, Evaluation, Report

RECORDING = Path(__file__).resolve().parents[1] / "data" / "extrapolation.npz"
FIRST = 0.1
NEEDED, MAX_HALF_WIDTH = 38, 0.10
"""Of 40 runs, so that the lower end of the coverage's one-sided 95 % interval (Clopper and Pearson) is 0.85."""
EPOCHS, SECONDS, BESIDE = 20, 125.0, 5
"""Of each run, the least that it takes, and how many are made side by side."""
NETWORKS = (
    ("resnet50", "p100", 32), ("inception_v3", "p100", 16), ("resnet50", "m60", 8), ("resnet152", "p100", 16),
    ("resnet50", "k80", 8), ("inception_v3", "m60", 8), ("resnet50", "m60", 16), ("inception_v3", "p100", 32),
)  # fmt: skip
VARIATIONS = ("steady", "jitter", "slow decode", "evaluations and checkpoints", "all of them")
JITTER = 0.1
"""Mean of the random part of a step, relative to the step; its logarithm is autoregressive."""
ALIKE, SPREAD = 0.6, 0.5


@dataclass(frozen=True)
class Case:
    """One run of the backtest."""

    number: int
    model: str
    accelerator: str
    batch: int
    variation: str
    ranks: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.model} on {self.accelerator}, batch {self.batch}, {self.ranks} rank(s), {self.variation}"

    def has(self, *variations: str) -> bool:
        """Whether it varies in this way."""
        return self.variation in (*variations, "all of them")

    def spec(self) -> RunSpec:
        """A full training."""
        step_s = emulated_step_time(self.model, self.accelerator, self.batch)
        # Slow decoding by three threads: as slow as the step, so that now one, now the other is waited for.
        decode_s = step_s if self.has("slow decode") else 0.0
        steps = math.ceil(SECONDS / step_s / EPOCHS)
        costs = self.has("evaluations and checkpoints")
        side = 8 if self.model.startswith("resnet") else 80  # the least that the others take
        return RunSpec.model_validate_json(json.dumps({
            "model": self.model, "device": f"emulated:{self.accelerator}", "ranks": self.ranks, "seed": self.number,
            "strategy": "allreduce" if self.ranks > 1 else "single", "batch": {"per_rank": self.batch},
            "data": {"source": "synthetic", "samples": steps * self.batch * self.ranks, "shape": [3, side, side]},
            "loader": {"workers": 1, "prefetch": 2},
            "train": {"epochs": EPOCHS, "evaluate_every_epochs": 1 if costs else 0}, "measure": {"warmup_steps": 2},
            "faults": [{"kind": "slow_decode", "seconds": decode_s}] if decode_s else [],
            "checkpoint": {"every_steps": max(2, steps * EPOCHS // 12)} if costs else {},
        }))  # fmt: skip


def cases() -> list[Case]:
    """Every network with every variation; every fifth network on two ranks that exchange its gradients."""
    pairs = itertools.product(VARIATIONS, NETWORKS)
    return [
        Case(number, *network, variation, 2 if network[:2] == ("resnet50", "k80") else 1)
        for number, (variation, network) in enumerate(pairs)
    ]


# One run


def make(case: Case, out: Path) -> None:
    """Train one run to its end, and keep when its steps began and ended on the slowest rank."""
    import pandas as pd

    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.launch import launch
    from scalestudy.spec.config import Site
    from scalestudy.spec.machine import Machine
    from scalestudy.training import trainer
    from scalestudy.training.faults import Faults

    class EvaluatorOfEmulated(trainer.Evaluator):
        """A stand-in: emulated runs make no evaluation, because there is nothing to score. This one waits for it."""

        def _scores_after(self, done: int) -> bool:
            made = self.recorder.report.evaluations
            return not (made and made[-1].step == done)

    class Jitter(Faults):
        """A stand-in for what makes the steps of a shared machine vary: random waits, alike for a while."""

        def in_step(self, step: int) -> None:
            super().in_step(step)
            mean_s = JITTER * emulated_step_time(case.model, case.accelerator, case.batch)
            self.level = ALIKE * getattr(self, "level", 0.0) + math.sqrt(1 - ALIKE**2) * random.gauss(0, 1)
            time.sleep(mean_s * math.exp(SPREAD * self.level - SPREAD**2 / 2))

    trainer.Evaluator = EvaluatorOfEmulated  # type: ignore[misc]
    if case.has("jitter"):
        trainer.Faults = Jitter  # type: ignore[attr-defined]
    random.seed(case.number)
    spec = case.spec()
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "data" / "manifest.json"
        prepare(spec.data, manifest, None, Site())
        result = launch.run(f"backtest-{case.number}", spec, manifest, Path(folder) / "result.json", Machine())
        steps = pd.read_parquet(Path(folder) / "steps.parquet")
        samples = json.loads(manifest.read_text())["train"]["samples"]
    assert result["status"] == "valid", result["reason"]
    parts = {
        rank: np.stack([rows["begin_s"], rows["begin_s"] + rows.filter(regex="(data|convert|compute|exchange|optimiser)_s").sum(axis=1)], axis=1)
        for rank, rows in steps.groupby("rank")
    }  # fmt: skip
    marks = max(parts.values(), key=lambda part: part[-1, 1])
    facts = {
        "name": case.name, "spec": spec.to_dict(), "samples": samples, "loop_s": result["metrics"]["training_time_s"],
        "evaluations": [{key: each[key] for key in ("step", "evaluation_s")} for each in result["evaluations"]],
        "checkpoints": [{key: each[key] for key in ("step", "seconds")} for each in result["checkpoints"]],
    }  # fmt: skip
    np.savez(out, marks=marks, facts=json.dumps(facts))
    print(f"{case.number:2} {facts['loop_s']:7.1f} s  {case.name}", flush=True)


def record(folder: Path) -> None:
    """Fork all runs from this process, which has imported their modules."""
    from scalestudy.launch.preload import preload

    preload()
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    waiting = [case for case in cases() if not (folder / f"{case.number:02}.npz").exists()]
    running: list[BaseProcess] = []
    # Evenly in time: many that begin together would disturb just the first tenth of each other.
    every_s, next_s = SECONDS / BESIDE, time.monotonic()
    while waiting or running:
        running = [process for process in running if process.is_alive()]
        if waiting and len(running) < BESIDE and time.monotonic() >= next_s:
            next_s = time.monotonic() + every_s
            case = waiting.pop(0)
            process = context.Process(target=make, args=(case, folder / f"{case.number:02}.npz"))
            process.start()
            running.append(process)
        time.sleep(0.2)
    pack(folder, folder / "extrapolation.npz")


def pack(folder: Path, file: Path) -> None:
    """One file of all runs: begins and lengths of steps in units of 0.1 ms."""
    arrays: dict[str, Any] = {}
    for path in sorted(folder.glob("[0-9][0-9].npz")):
        with np.load(path) as run:
            marks = np.round(run["marks"] * 1e4).astype(np.int64)
            arrays[f"{path.stem}.gaps"] = np.diff(marks.reshape(-1), prepend=0).astype(np.uint32)
            arrays[f"{path.stem}.facts"] = run["facts"]
    np.savez_compressed(file, **arrays)


# Judging


@dataclass(frozen=True)
class Judged:
    """What was said after the first tenth of a run, and what it took."""

    name: str
    true_s: float
    value_s: float
    low_s: float
    high_s: float

    @property
    def holds(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low_s <= self.true_s <= self.high_s

    @property
    def half_width(self) -> float:
        """Half the interval's width over the extrapolated time."""
        return (self.high_s - self.low_s) / 2 / self.value_s


def judge(file: Path = RECORDING, first: float = FIRST) -> list[Judged]:
    """Every recorded run, extrapolated from its first steps by the code that makes a result."""
    judged = []
    with np.load(file) as runs:
        for key in sorted(name.partition(".")[0] for name in runs.files if name.endswith(".facts")):
            facts = json.loads(str(runs[f"{key}.facts"]))
            marks = np.cumsum(runs[f"{key}.gaps"].astype(np.int64)).reshape(-1, 2) / 1e4
            found = _from_first(facts, marks, first)
            judged.append(
                Judged(facts["name"], facts["loop_s"], found.value, found.low or math.nan, found.high or math.nan)
            )
    return judged


def _from_first(facts: dict[str, Any], marks: np.ndarray, first: float) -> Any:
    spec = RunSpec.model_validate_json(json.dumps({**facts["spec"], "measure": {"warmup_steps": 2, "steps": 1}}))
    steps = max(1, round(first * len(marks)))
    # A run cut short makes one evaluation and one checkpoint at its end if it has had none: the next stands for it.
    evaluations, checkpoints = (
        [each for each in facts[name] if each["step"] <= steps] or facts[name][:1]
        for name in ("evaluations", "checkpoints")
    )
    report = Report(
        0,
        steps_done=steps,
        window=(2, steps),
        evaluations=[Evaluation(0.0, each["step"], 0.0, each["evaluation_s"]) for each in evaluations],
        checkpoints=[CheckpointCost(each["step"], each["seconds"], 0, False, "") for each in checkpoints],
        pauses=[each["step"] for each in (*facts["evaluations"], *facts["checkpoints"])],
    )
    sizes = SplitInfo(facts["samples"], 0)
    manifest = Manifest(
        id="", status="ready", reason=None, spec={}, format="tensors", classes=1, task="classification", channels=3,
        train=sizes, test=sizes, bulk="", fingerprint="", seconds=0.0, index="", width=None, height=None,
    )  # fmt: skip
    return training_time(spec, Measured([report], marks[None, :steps], np.zeros((1, steps))), manifest)


def print_judged(judged: list[Judged]) -> bool:
    """A line per run and the verdict; returns whether the backtest is passed."""
    for each in judged:
        sign = "in " if each.holds else "OUT"
        print(
            f"{sign}  {each.value_s:7.1f} s [{each.low_s:7.1f} .. {each.high_s:7.1f}] ± {each.half_width:5.1%}  "
            f"measured {each.true_s:7.1f} s ({each.true_s / each.value_s - 1:+6.1%})  {each.name}"
        )
    held, widest = sum(each.holds for each in judged), max(each.half_width for each in judged)
    shortest = min(each.true_s for each in judged)
    print(f"{held} of {len(judged)} intervals hold the measured time (needed: {NEEDED} of 40); widest half-width {widest:.1%} (at most {MAX_HALF_WIDTH:.0%}); shortest run {shortest:.0f} s")  # fmt: skip
    return held >= NEEDED / 40 * len(judged) and widest <= MAX_HALF_WIDTH


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    record(folder)
    raise SystemExit(0 if print_judged(judge(folder / "extrapolation.npz")) else 1)


if __name__ == "__main__":
    main()
