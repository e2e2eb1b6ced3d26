"""The objects of one rank, without processes."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from scalestudy.data.manifest import read_manifest
from scalestudy.data.prepare.datasets import prepare
from scalestudy.errors import UserError
from scalestudy.measure.timers import StepTimer
from scalestudy.results.validity import RunEvidence
from scalestudy.spec.config import Site
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World
from scalestudy.training.job import Job, Resolved
from scalestudy.training.recorder import Recorder
from scalestudy.training.replica import Replica
from scalestudy.training.report import Report
from scalestudy.training.schedule import Schedule
from scalestudy.training.trainer import Trainer
from scalestudy.training.training_data import TrainingData
from tests.unit.measure.test_timers import CPU, event, make_steps

__all__ = ["event"]

SMALL = {
    "model": {"name": "mlp", "hidden": 4, "layers": 1},
    "data": {"source": "synthetic", "samples": 32, "shape": [1, 4, 4]},
    "batch": {"per_rank": 4},
    "train": {"epochs": 3, "evaluate_every_epochs": 2},
    "loader": {"workers": 0},
}
"""8 steps in each of 3 epochs."""


def job(folder: Path, **changes: object) -> Job:
    """A run of one rank in a folder, with its data prepared."""
    spec = RunSpec.model_validate_json(json.dumps({**SMALL, **changes}))
    manifest = folder / "data" / "manifest.json"
    if not manifest.exists():
        prepare(spec.data, manifest, None, Site())
    (folder / "scratch").mkdir(exist_ok=True)
    resolved = Resolved(1, 1, 1, "cpu", 2, None)
    return Job("r", spec, resolved, manifest, folder / "scratch", folder, run_folder=folder)


def trainer(of: Job) -> Trainer:
    """Its rank, ready to train or to resume."""
    world = World(0, 1, 0, CPU, 1, None)
    data = TrainingData.open(of, 0)
    return Trainer(Replica(of, world, data))


def test_ranks_begin_with_equal_weights_and_draw_different_numbers(tmp_path: Path) -> None:
    of = job(tmp_path)
    data = TrainingData.open(of, 0)
    weights, drawn = [], []
    for rank in (0, 0, 1):
        weights.append(Replica(of, World(rank, 2, 0, CPU, 1, None), data).digest())
        drawn.append(torch.rand(4))
    assert len(set(weights)) == 1
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_the_digest_of_parameters_does_not_depend_on_their_memory_format(tmp_path: Path) -> None:
    # resnet18 has 1 x 1 convolutions, whose channels-last weights count as contiguous too
    resnet = {"model": "resnet18", "data": {"source": "synthetic", "samples": 32, "shape": [3, 32, 32]}}
    plain = trainer(job(tmp_path, **resnet)).replica.digest()
    assert trainer(job(tmp_path, **resnet, memory_format="channels_last")).replica.digest() == plain


def test_the_decoders_of_all_attempts_are_reported(tmp_path: Path) -> None:
    recorder = trainer(job(tmp_path)).recorder
    recorder.report.decoders = ["plain"]
    kept = {"marks": torch.zeros(0, 7), "losses": torch.zeros(0)}
    recorder.restore(Report(0, decoders=["kernel, AVX2"]), kept, None)
    assert recorder.report.decoders == ["kernel, AVX2", "plain"]


@pytest.mark.parametrize(
    "source",
    [{"source": "digits"}, {"source": "synthetic_jpeg", "samples": 32, "width": 32, "height": 32, "mean_kib": 1.0}],
)
def test_data_that_ranks_of_a_node_cannot_all_keep_in_memory_is_refused(
    source: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = job(tmp_path, data=source, loader={"mode": "memory"})
    data = read_manifest(alone.manifest)
    monkeypatch.setattr(
        "scalestudy.training.training_data.free_memory_bytes", lambda: 2 * (data.train.bytes + data.test.bytes)
    )
    TrainingData.open(alone, 0).close()
    three = dataclasses.replace(alone, resolved=dataclasses.replace(alone.resolved, ranks_per_node=3))
    with pytest.raises(UserError, match="MiB for 3 ranks of a node do not fit into the"):
        TrainingData.open(three, 0)


@pytest.mark.parametrize(("kind", "decoders"), [("PNG", ["plain: pillow and torch"]), ("JPEG", ["kernel, AVX2"])])
def test_png_is_not_said_to_be_decoded_by_the_kernel(tmp_path: Path, kind: str, decoders: list[str]) -> None:
    for folder in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (tmp_path / folder).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / folder / "0.png", kind)
    of = job(tmp_path, data={"source": "image_folder", "root": str(tmp_path)})
    measured: Any = SimpleNamespace(reports=[Report(0, decoders=["kernel, AVX2"])])
    assert RunEvidence(of, measured, {}, read_manifest(of.manifest)).decoders == decoders


@pytest.mark.parametrize(("count", "is_timed"), [(10, True), (11, False)])
def test_the_loader_alone_is_timed_only_on_batches_that_the_training_has(
    tmp_path: Path, count: int, is_timed: bool
) -> None:
    # 24 batches in 3 epochs: 4 fill the queue of two workers, however few steps are measured.
    measure = {"loader_batches": count, "warmup_steps": 1, "steps": 5}
    rank = trainer(job(tmp_path, loader={"workers": 2}, measure=measure))
    rank.measure_loader()
    assert (rank.recorder.report.loader_samples_per_s is not None) is is_timed
    assert [word for word in rank.recorder.report.warnings if "not timed" in word] == [
        "the loader alone was not timed: the training has fewer batches than 11 per worker and those that fill the loader's "
        "queue: lower `measure.loader_batches`, or raise `train.epochs`"
    ] * (not is_timed)


def test_a_weight_of_two_names_is_kept_under_both(tmp_path: Path) -> None:
    replica = trainer(job(tmp_path, model={"name": "mlp", "hidden": 16, "layers": 3})).replica
    assert isinstance(replica.model, torch.nn.Sequential)
    first, second = replica.model[1], replica.model[3]
    second.weight = first.weight
    replica.save_weights(tmp_path / "weights.safetensors")
    assert load_file(tmp_path / "weights.safetensors").keys() == replica.model.state_dict().keys()


def test_operations_are_counted_where_a_peak_is_stated(tmp_path: Path) -> None:
    of = job(tmp_path)
    stated = trainer(
        dataclasses.replace(of, resolved=dataclasses.replace(of.resolved, peak_tflops=0.1, convolution_peak_tflops=0.2))
    )
    # One linear layer of 16 x 10, forward and for its weights backward, a multiply-add counted as two.
    assert stated.replica.sample_at_peak_s() == pytest.approx(2 * 16 * 10 * 2 / 0.1e12)
    assert trainer(of).replica.sample_at_peak_s() is None


def test_a_model_is_compiled_before_the_first_step_and_for_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled.append([tuple(each.shape) for each in inputs])
        return graph.forward

    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compile_module(module, backend=backend))
    rank = trainer(job(tmp_path, compile=True))
    before = list(compiled)
    assert before
    rank.train()
    rank.evaluator.at_end()
    assert len(rank.recorder.report.evaluations) == 2
    assert compiled == before


def test_the_window_of_a_device_that_is_behind_its_host_is_that_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: Any
) -> None:
    event.device_s = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: event.device_s)  # the host waits for nothing but the device
    of = job(tmp_path, measure={"warmup_steps": 10, "steps": 20})
    recorder = Recorder(of, World(0, 1, 0, CPU, 1, None), Schedule(of.spec, 8))
    recorder.timer = StepTimer(CPU, event)
    recorder.begin()
    for step in range(30):  # all are queued at once
        make_steps(recorder.timer, event, 1, 0.01 / 6)
        recorder.step(torch.zeros(1), 4)
        recorder.begin_window(step + 1)
    loader: Any = SimpleNamespace(slow_decode=0)
    faults: Any = SimpleNamespace(fired={}, killed_before=0)
    recorder.account(loader, faults)
    assert recorder.report.window_clock == pytest.approx((0.1, 0.3), abs=1e-6)
