"""Runs as a person makes them: `scalestudy try` in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from scalestudy.strategies.fsdp import SUPPORTED
from tests.integration.tries import ROOT, attempt, result, run, weights

SHORT = ("train.epochs=2", "optimiser.learning_rate=0.05")
PERCEPTRON = "model={name: mlp, hidden: 64, layers: 2}"


def test_the_same_seed_data_and_ranks_give_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    settings = (*SHORT, "strategy=allreduce", "ranks=2", "loader.augment=flip", "keep=weights")
    run(tmp_path / "a", *settings)
    run(tmp_path / "b", *settings, "loader.workers=3", SCALESTUDY_WARM="0")
    run(tmp_path / "c", *settings, "seed=1")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


LISTS_MODULES = """
import sys
from torch import nn

class Lists(nn.Linear):
    def __init__(self, classes, channels):
        super().__init__(64 * channels, classes)

    def forward(self, x):
        names = [name for name in sys.modules if name.split(".")[0] in ("scalestudy", "snakemake_executor_plugin_multinode")]
        open("modules", "w").write(" ".join(names))
        return super().forward(x.flatten(1))
"""


def test_a_run_of_one_rank_whose_data_is_there_loads_no_modules_of_others(tmp_path: Path) -> None:
    (tmp_path / "config/extensions").mkdir(parents=True)
    (tmp_path / "config/extensions/modules.py").write_text(LISTS_MODULES)
    settings = ("model={import: 'modules:Lists'}", "strategy=allreduce", "ranks=1", "train.epochs=1")
    for _ in ("the data is prepared", "it is there"):
        run(tmp_path / "out", *settings, cwd=tmp_path)
    names = (tmp_path / "modules").read_text().split()
    assert "scalestudy.training.evaluator" in names and len(names) <= 110, names


FINDINGS = """
import numpy as np
class Findings:
    def __init__(self, train):
        draws, count = np.random.default_rng(int(train)), 600 if train else 200
        self.labels = draws.integers(0, 2, (count, 14)).astype(np.float32)
        # A finding brightens two columns of its own.
        bright = 150 * self.labels.repeat(2, axis=1)[:, None, None]
        self.images = (draws.integers(0, 60, (count, 1, 28, 28)) + bright).astype(np.uint8)
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        return self.images[index], self.labels[index]
"""


def test_findings_that_pixels_show_are_learnt_and_scored_by_auroc(tmp_path: Path) -> None:
    (tmp_path / "config" / "extensions").mkdir(parents=True)
    (tmp_path / "config" / "extensions" / "shown.py").write_text(FINDINGS)
    settings = ("data={import: 'shown:Findings'}", PERCEPTRON, "strategy=allreduce", "ranks=2", "batch.per_rank=16")
    found = run(tmp_path / "out", *settings, "optimiser.learning_rate=0.05", "train.epochs=4", cwd=tmp_path)
    per_label = found["evaluations"][-1]["auroc_per_label"]
    assert len(per_label) == 14 and min(per_label) > 0.9
    assert found["metrics"]["auroc"] == pytest.approx(sum(per_label) / 14)
    assert found["metrics"]["accuracy"] is None


def test_an_emulated_accelerator_waits_as_long_as_published_and_claims_no_accuracy(tmp_path: Path) -> None:
    settings = ("model=resnet50", "device=emulated:p100", "data={source: synthetic, samples: 640, shape: [3, 32, 32]}")
    found = run(tmp_path, *settings, "batch.per_rank=32", "measure.steps=8", "measure.warmup_steps=2")
    assert found["status"] == "valid" and found["emulated"]
    assert found["metrics"]["accuracy"] is None and found["metrics"]["loss"] is None
    assert found["resolved"]["step_time_s"] == pytest.approx(32 / 195)
    # A step begins where the last one ended, at most 5 ms before the loop begins it.
    assert found["metrics"]["step_time_s"] >= 32 / 195 - 0.005


PARTS = ("data_s", "convert_s", "compute_s", "exchange_s", "optimiser_s")


@pytest.mark.parametrize(
    "strategy",
    [
        "ring",
        "allreduce",
        "pipeline",
        pytest.param("fsdp", marks=pytest.mark.skipif(not SUPPORTED, reason="fsdp needs torch 2.8")),
    ],
)
def test_the_parts_of_a_step_sum_to_it_however_a_strategy_exchanges(tmp_path: Path, strategy: str) -> None:
    model = "model={name: mlp, hidden: 64, layers: 3}"
    found = run(tmp_path, f"strategy={strategy}", "ranks=2", "train.epochs=2", model)["metrics"]
    assert sum(found[part] or 0.0 for part in PARTS) == pytest.approx(found["step_time_s"])
    apart = found["forward_s"] is not None and found["backward_s"] is not None
    assert apart == (strategy == "ring")
    if apart:
        assert found["forward_s"] + found["backward_s"] == pytest.approx(found["compute_s"])
    if found["forward_s"] is not None:  # of an overlapped exchange too, whose backward has no number
        steps = pd.read_parquet(tmp_path / "steps.parquet")
        assert (steps[["forward_s", "backward_s"]] >= 0).all(axis=None)
    assert (found["forward_s"] is not None) == (strategy in ("ring", "allreduce"))
    overlaps = strategy in ("fsdp", "allreduce")
    assert (found["exchange_s"] is None) == (found["exchange_wait_s"] is None) == overlaps


def test_a_program_of_one_step_is_timed_as_a_whole_and_has_no_throughput(tmp_path: Path) -> None:
    one_step = ("strategy=allreduce", "ranks=2", "measure.warmup_steps=0", "measure.steps=1")
    program = run(tmp_path, *one_step, "measure.whole_program=true")
    assert (program["status"], program["steps_done"]) == ("valid", 1)
    assert program["metrics"]["wall_s"] > program["metrics"]["setup_s"] > 0
    assert program["metrics"]["throughput_samples_per_s"] is None
    assert program["metrics"]["training_time_s"] is None
    assert program["kinds"] == {}


def test_a_window_whose_cores_others_use_is_marked(tmp_path: Path) -> None:
    settings = (PERCEPTRON, "threads_per_rank=1")
    with busy_cores():
        attempt(tmp_path, *settings, "train={epochs: 10000, evaluate_every_epochs: 0}", "measure.minutes=0.03")
    found = result(tmp_path)
    assert found["disturbed"] is True
    assert found["metrics"]["foreign_cpu_share"] > 0.05
    assert any("disturbed: other processes took" in warning for warning in found["warnings"])


@contextmanager
def busy_cores() -> Iterator[None]:
    """Another program that computes on every second core that this one may use."""
    program = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    others = [
        subprocess.Popen([sys.executable, "-c", program, str(core)]) for core in sorted(os.sched_getaffinity(0))[::2]
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


MODEL = """\
import os, torch


class Own(torch.nn.Linear):
    def __init__(self, classes, channels):
        super().__init__(64 * channels, classes)

    def forward(self, x):
        {line}
        return super().forward(x.flatten(1))
"""


def own_model(folder: Path, line: str) -> str:
    """Write a model of your own whose forward pass begins with a line; returns its setting for runs below a folder."""
    (folder / "config" / "extensions").mkdir(parents=True)
    (folder / "config" / "extensions" / "my_nets.py").write_text(MODEL.format(line=line))
    return "model.import=my_nets:Own"


def test_a_model_that_ends_its_process_is_named_as_the_cause(tmp_path: Path) -> None:
    done = attempt(tmp_path / "out", own_model(tmp_path, "os._exit(0)"), "train.epochs=1", cwd=tmp_path)
    assert done.returncode == 1
    assert "rank 0 ended before its work was done (exit status 0)" in done.stdout and "Traceback" not in done.stdout
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_model_that_is_nan_in_evaluation_on_one_rank_makes_the_run_invalid(tmp_path: Path) -> None:
    model = own_model(tmp_path, "x = x if self.training or torch.distributed.get_rank() == 0 else x * float('nan')")
    done = attempt(tmp_path / "out", model, "strategy=allreduce", "ranks=2", "train.epochs=3", cwd=tmp_path)
    found = result(tmp_path / "out")
    assert (found["status"], found["metrics"]["accuracy"]) == ("invalid", None), done.stdout
    assert found["reason"].startswith("180 of 360 held-out samples have a score that is not finite, after epoch 1:")


def test_a_run_that_does_not_fit_in_the_memory_of_its_device_is_a_result(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total')"
    model = own_model(tmp_path, f"if len(x) > 7 and x.device.type != 'meta': raise {error}")
    done = attempt(tmp_path / "out", model, "batch.per_rank=8", "ranks=2", "strategy=allreduce", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    found = result(tmp_path / "out")
    assert found["status"] == "skipped"
    assert found["reason"].startswith("does not fit: CUDA out of memory. Tried to allocate 2.00 GiB. ")
    assert found["reason"].endswith("; use a smaller batch, or another strategy or precision")
    assert not found["metrics"]
    assert "OutOfMemoryError: CUDA out of memory" in (tmp_path / "out" / "log" / "rank.0.log").read_text()


@pytest.mark.slow
def test_a_compiled_model_trains(tmp_path: Path) -> None:
    model = "model={name: mlp, layers: 1, hidden: 16}"
    settings = (model, "compile=true", "train={epochs: 3, evaluate_every_epochs: 0}", "optimiser.learning_rate=0.05")
    # What was compiled is kept for the next time: compiling takes 15 seconds of a core.
    found = run(tmp_path, *settings, TORCHINDUCTOR_CACHE_DIR=str(ROOT / "build" / "inductor"))
    assert found["metrics"]["loss"] < 1.0
