"""What `make run` chooses, by stand-in GPUs, and what it says at its end of the GPU that it ran on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalestudy.analysis.on_devices import about_devices
from scalestudy.commands.run import ON_GPU, chosen
from scalestudy.errors import UserError
from scalestudy.hardware import Accelerators
from scalestudy.spec.base import parse
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies
from scalestudy.spec.run import RunSpec
from tests.unit.conftest import See

ROOT = Path(__file__).resolve().parents[2]


def test_a_driver_that_torch_cannot_use_is_no_reason_to_take_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Accelerators("", (), "torch", unusable="nvmlInit_v2: Driver/library version mismatch; torch finds none")
    monkeypatch.setattr("scalestudy.hardware.accelerators", lambda: broken)
    for scale in (None, "node"):
        with pytest.raises(
            UserError, match="this machine has an accelerator, but it cannot be used: nvmlInit_v2"
        ) as caught:
            chosen(scale)
        assert "`make run SCALE=mini` measures the CPU" in caught.value.remedy
    assert chosen("mini").scale == "mini"


def test_what_make_run_measures_on_a_gpu_is_sampled_often_enough_and_takes_ten_minutes_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    machine = Machine.model_validate({"devices_per_node": 1, "device": "cuda", "cores_per_node": 16, "nodes": 1})
    runs = [run.spec for study in find_studies(ON_GPU, "node", machine).studies for run in study.runs]
    assert {spec.loader.workers for spec in runs if spec.data.source == "synthetic_jpeg"} == {1, 2, 4, 8, 16}
    windows_s = [60 * (spec.measure.minutes or 0.0) for spec in runs]
    assert min(windows_s) >= 5  # NVML is sampled once a second
    assert all(spec.measure.steps is None for spec in runs)
    # Beside its window a run starts processes and CUDA, warms up, and may time its loader alone: 8 s each, to be seen on a GPU.
    assert sum(windows_s) + 8 * len(runs) <= 600


def test_a_machine_without_a_gpu_runs_on_its_cpu(project: Path, see: See) -> None:
    see(0)
    assert chosen().config == ("studies=second_rank,noise,loader_workers,small_files", "scale=mini", "machine=local")
    with pytest.raises(UserError, match="scale `node` needs an accelerator"):
        chosen("node")


def made(rate: float, **spec: Any) -> tuple[RunSpec, dict[str, Any]]:
    run, problems = parse(RunSpec, {"model": "resnet50", "batch": {"per_rank": 32}, **spec})
    assert run is not None, problems
    metrics = {"throughput_samples_per_s": rate, "j_per_sample": 0.25, "device_power_w": 500.0}
    return run, {"status": "valid", "metrics": metrics, "instrument": {"device_name": "Stand-in GPU"}}


def test_the_best_of_each_precision_is_said_with_its_energy() -> None:
    bfloat16 = {"autocast": "bfloat16", "memory_format": "channels_last"}
    runs = [made(rate, repeat=repeat, seed=repeat) for repeat, rate in enumerate((1000.0, 1100.0, 1200.0))]
    runs += [made(900.0, batch={"per_rank": 8}), made(2500.0, **bfloat16)]
    assert about_devices(runs) == [
        "Stand-in GPU:",
        "  resnet50, float32: 1,100 samples/s with a batch of 32, 500 W, 0.25 J per sample (median of 3)",
        "  resnet50, bfloat16, channels last: 2,500 samples/s with a batch of 32, 500 W, 0.25 J per sample (median of 1)",
    ]


def test_unlike_runs_are_not_taken_together_and_a_program_has_no_model_of_ours() -> None:
    read, unread = made(1000.0), made(3000.0, loader={"mode": "synthetic"})
    program = made(9000.0, program={"command": "python train.py", "files": ["train.py"]})
    assert about_devices([read, unread, program]) == [
        "Stand-in GPU:",
        "  resnet50, float32: 3,000 samples/s with a batch of 32, 500 W, 0.25 J per sample (median of 1)",
    ]
