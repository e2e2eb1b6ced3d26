"""What the suite for GPUs computes from a device's answers, on made-up ones: no GPU is needed."""

from __future__ import annotations

import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from scalestudy.models.build import build
from scalestudy.spec.run import RunSpec
from scalestudy.spec.step_times import emulated_step_time
from tests.gpu import bring, checks, devices, groups, measures, study
from tests.gpu.groups import Group
from tests.gpu.suite import Suite, Values, paired, tf32


def of_profile(name: str, where: Any, microseconds: float, begin: float = 0.0, annotation: bool = False) -> Any:
    span = SimpleNamespace(start=begin, end=begin + microseconds)
    return SimpleNamespace(name=name, device_type=where, self_device_time_total=microseconds,
                           is_user_annotation=annotation, time_range=span)  # fmt: skip


def test_kernel_time_of_a_profile_is_counted_once() -> None:
    rows = [
        of_profile("aten::mm", DeviceType.CPU, 2_000_000),
        of_profile("sgemm", DeviceType.CUDA, 2_000_000),
        of_profile("step", DeviceType.CUDA, 2_000_000, annotation=True),
    ]
    assert checks.kernel_seconds(rows) == 2.0


def test_copies_and_kernels_of_a_trace_are_told_apart() -> None:
    events = [
        of_profile("aten::copy_", DeviceType.CPU, 50, 0),
        of_profile("sgemm", DeviceType.CUDA, 100, 200),
        of_profile("sgemm", DeviceType.CUDA, 100, 0),
        of_profile("Memcpy HtoD (Pinned -> Device)", DeviceType.CUDA, 40, 80),
        of_profile("Memset (Device)", DeviceType.CUDA, 40, 110),
    ]
    copies, kernels = checks.copies_and_kernels(events)
    assert copies == [(80, 120)]
    assert kernels == [(0, 100), (200, 300)]
    assert checks._overlap(copies[0], kernels) == 20


@pytest.mark.parametrize(("settings", "channels", "side"), [("mlp", 1, 8), ("resnet18", 3, 64)])
def test_models_that_are_compared_bit_for_bit_have_no_operation_that_differs_on_a_gpu(
    settings: str, channels: int, side: int
) -> None:
    spec = RunSpec.model_validate({"model": settings})
    model = build(
        spec.model, classes=10, channels=channels, image_size=(side, side), task="multiclass", extensions=None
    )
    names = set()
    stack = [model(torch.rand(2, channels, side, side)).sum().grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in names:
            names.add(node)
            stack += [below for below, _ in node.next_functions]
    # Those of torch.use_deterministic_algorithms' list that a classification network can have.
    refused = (
        "AdaptiveAvgPool",
        "AdaptiveMaxPool",
        "MaxPool3D",
        "AvgPool3D",
        "FractionalMaxPool",
        "Upsample",
        "MaxUnpool",
    )
    assert not [node.name() for node in names if any(word in node.name() for word in refused)]
    assert settings in "".join((*checks.EXACT["cuda"], "model=mlp"))


def suite(folder: Path, seconds: float = 60.0) -> Suite:
    folder.mkdir(exist_ok=True)
    return Suite(folder, time.monotonic() + seconds, torch.device("cpu"))


def first(_: Suite) -> Values:
    return {}


def second(_: Suite) -> Values:
    return {}


GROUP = Group("checks", "stand-in", (first, second), limit_s=20)
CODE = """
import json, os, sys, time
file = sys.argv[sys.argv.index("--outcomes") + 1]
with open(file, "a") as stream:
    stream.write(json.dumps({"part": "checks", "name": "first", "status": "passed", "seconds": 0.1, "text": ""}) + "\\n")
"""


@pytest.mark.parametrize(
    ("then", "said"),
    [("os.abort()", "its process ended with status -6"), ("time.sleep(60)", "killed 1 s after its group began")],
)
def test_what_a_group_did_not_come_to_has_failed_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, said: str
) -> None:
    monkeypatch.setattr(groups, "ALLOWANCE_S", 0.5)
    words = [sys.executable, "-c", CODE + then]
    found = groups.run_apart(suite(tmp_path, 0.6 if "sleep" in then else 60), GROUP, words)
    assert [(outcome.name, outcome.status) for outcome in found] == [("first", "passed"), ("second", "failed")]
    assert found[1].text.startswith(said)


def test_a_group_in_a_process_of_its_own_hands_its_outcomes_back(tmp_path: Path) -> None:
    whole = next(group for group in checks.GROUPS if group.name == "loader")
    one = whole.only("normalising")
    words = groups.own_command(tmp_path, "--only", "normalising")
    (outcome,) = groups.run_apart(suite(tmp_path), one, words)
    assert (outcome.name, outcome.status) == ("normalising_on_the_device_equals_the_cpu", "passed")
    assert outcome.values["largest_difference"] == 0.0


def test_a_group_that_no_time_is_left_for_starts_no_process(tmp_path: Path) -> None:
    found = groups.run_apart(suite(tmp_path, -1.0), GROUP, ["no such program"])
    assert {outcome.status for outcome in found} == {"no time left"}


def test_the_archive_holds_what_matters_first_and_says_what_did_not_fit(tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    for name, size in {"kept/study/figures/a.svg": 100, "kept/big.zip": 9000, "files/run/result.json": 50,
                       "files/run/log/rank.0.log": 60, "files/run/weights.safetensors": 70}.items():  # fmt: skip
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(bytes(size))
    out.mkdir()
    (out / "gpu.json").write_text("{}")
    left_out = bring.archive(out, bring.to_bring(out, work), most_bytes=8000)
    assert left_out == ["kept/big.zip"]
    with tarfile.open(out / bring.ARCHIVE) as packed:
        assert packed.getnames() == [
            "gpu.json", "kept/study/figures/a.svg", "runs/run/result.json", "runs/run/log/rank.0.log", "left_out.txt",
        ]  # fmt: skip
    assert sorted(path.name for path in out.iterdir()) == ["gpu.json", "gpu.tar.gz"]


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [("NVIDIA H100 80GB HBM3", 989.5), ("NVIDIA H100 NVL", 835.5), ("NVIDIA H100 PCIe", None), ("NVIDIA H100", None)],
)
def test_peaks_are_those_of_the_gpu_of_exactly_that_name(name: str, bfloat16: float | None) -> None:
    assert measures.peak_tflops(name, "bfloat16") == bfloat16


def test_tf32_is_as_before_after_a_measure() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with tf32(True):
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    with pytest.raises(ValueError, match="a measure"), tf32(False):
        assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
        raise ValueError("a measure")
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_a_ratio_is_a_mean_over_turns_with_either_first_in_every_second(tmp_path: Path) -> None:
    order: list[str] = []

    def took(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    on_gpu = Suite(tmp_path, time.monotonic(), torch.device("cuda"))
    found = paired(on_gpu, lambda: took("one", 2.2), lambda: took("other", 2.0))
    assert (found.count, round(found.value, 6)) == (7, 1.1)
    assert order == ["other", "one", "one", "other"] * 4


class WithGpu(Suite):
    """A suite that takes the way of a GPU, with runs that are made up."""

    @property
    def dry(self) -> bool:
        return False


def metrics_of(rate: float) -> dict[str, Any]:
    metrics = {"throughput_samples_per_s": rate, "loader_samples_per_s": 4000.0, "device_utilisation": 0.9}
    return {"status": "valid", "reason": None, "metrics": metrics}


@pytest.mark.parametrize(("emulated", "passes"), [(970.0, True), (900.0, False)])
def test_an_emulated_device_waits_as_long_as_the_real_one_was_measured_to_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulated: float, passes: bool
) -> None:
    seen: list[float] = []

    def tried(_: Suite, name: str, *settings: str, cwd: Path) -> dict[str, Any]:
        if "device=emulated:this_gpu" in settings:
            seen.append(emulated_step_time("resnet50", "this_gpu", 64, cwd / "config/reference/step_times.csv"))
        return metrics_of(2560.0 if name == "real-alone" else emulated if "emulated" in name else 1000.0)

    monkeypatch.setattr(measures, "tried", tried)
    of_gpu = WithGpu(tmp_path, time.monotonic() + 60, torch.device("cpu"))
    if passes:
        found = measures.an_emulated_device_is_as_fast_as_the_real_one(of_gpu)
        assert found["1_workers_emulated_over_real"] == 0.97
    else:
        with pytest.raises(AssertionError, match="more than 5 % apart"):
            measures.an_emulated_device_is_as_fast_as_the_real_one(of_gpu)
    assert set(seen) == {0.025}


def test_cores_that_a_gpu_needs_follow_from_the_loader_and_from_what_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "tried", lambda *_: metrics_of(2000.0))
    monkeypatch.setattr(measures.os, "sched_getaffinity", lambda _: set(range(16)))
    found = measures.cores_that_this_gpu_needs(WithGpu(tmp_path, time.monotonic() + 60, torch.device("cpu")))
    assert found["workers_needed"] == 8.0
    assert {"1_workers_utilisation", "8_workers_utilisation", "16_workers_utilisation"} <= found.keys()


@pytest.mark.parametrize(
    ("reasons", "passes"),
    [
        (("the measured window is 2 steps", "does not fit: 2 GiB more were asked for"), True),
        (("does not fit: 1 GiB more", "does not fit: 2 GiB more"), False),
        (("the measured window is 2 steps", "the measured window is 2 steps"), False),
    ],
)
def test_the_largest_batch_is_judged_by_training_with_it_and_with_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reasons: tuple[str, str], passes: bool
) -> None:
    made = iter(reasons)

    def tried(*_: Any) -> dict[str, Any]:
        reason = next(made)
        return {"status": "skipped" if reason.startswith("does not") else "invalid", "reason": reason, "metrics": {}}

    said = SimpleNamespace(returncode=0, stdout="    1,024 samples\nlargest batch per rank that fits: 1,000\n")
    monkeypatch.setattr(devices, "tried", tried)
    monkeypatch.setattr(devices, "scalestudy", lambda *_: said)
    of_gpu = WithGpu(tmp_path, time.monotonic() + 60, torch.device("cpu"))
    if passes:
        assert devices.the_largest_batch_is_the_largest(of_gpu)["largest_batch"] == 1000
    else:
        with pytest.raises(AssertionError, match="found 1000"):
            devices.the_largest_batch_is_the_largest(of_gpu)


def test_a_study_is_packed_from_the_machine_that_has_results(tmp_path: Path) -> None:
    for name in ("h100_x1/runs/a", "h100_x1/runs/b", "local/runs/unfinished"):
        (tmp_path / "results" / name).mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "results/h100_x1/runs" / name / "result.json").write_text("{}")
    assert study.measured_machines(tmp_path) == ["h100_x1"]


def test_a_study_that_would_outlast_the_time_is_interrupted_and_what_it_said_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import time; print('begun', flush=True); time.sleep(60)")
    monkeypatch.setattr(study, "END_S", 0.2)
    ended, said = study._until_the_time_is_over(suite(tmp_path, 1.5), tmp_path, ["slow", "name"])
    assert ended != 0
    assert said.startswith("begun")
    assert (tmp_path / "kept/name.log").read_text() == said
