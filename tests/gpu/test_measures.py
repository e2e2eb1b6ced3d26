"""Ratios on a GPU beside plain torch and torchvision, and the share of its peaks. Peers run in the same test, in turns."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.load.loader import Loader, on_device
from scalestudy.data.prepare.datasets import prepare
from scalestudy.spec.auto_machine import auto_machine
from scalestudy.spec.config import Site, read_machine
from scalestudy.spec.run import Loader as LoaderSpec
from scalestudy.spec.run import RunSpec
from scalestudy.training.job import Job, Resolved
from scalestudy.training.replica import DTYPES, Replica
from scalestudy.training.trainer import Trainer
from scalestudy.training.training_data import TrainingData
from scalestudy.training.world import join
from tests.gpu.common import (
    DEVICE,
    HAS_GPU,
    Record,
    as_values,
    images,
    median_s,
    paired,
    rehearsed_in_soak,
    seconds_of,
    size,
    synchronise,
    synthetic,
    tried,
    valid,
)  # fmt: skip

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
CORES = len(os.sched_getaffinity(0))


# The loop beside a bare one

NETWORK = ("resnet50", 224) if HAS_GPU else ("small_cnn", 8)
STEPS, MAX_RATIO = size(20, 10), 1.02
FIRST = 2
"""Steps of a turn of ours that do not count: the loader makes its first batches."""
LAST = {"memory_format": "channels_last"}
FAST = {"autocast": "bfloat16", "tf32": True}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "bfloat16_256": (256, {**FAST, **LAST}),
    "bfloat16_64": (64, {**FAST, **LAST}),
    "tf32_64": (64, {"tf32": True, **LAST}),
    "float32_64": (64, {"tf32": False, **LAST}),
    "bfloat16_64_compiled": (64, {**FAST, **LAST, "compile": True}),
}


@contextlib.contextmanager
def one_rank(folder: Path, batch: int, settings: dict[str, Any], manifest: Path | None = None) -> Iterator[Replica]:
    """A rank of a run, in this process. Without a manifest it reads one made batch from memory again and again."""
    model, side = NETWORK
    plain: dict[str, Any] = {
        "model": model, "data": {"source": "synthetic", "samples": 4 * batch, "shape": [3, side, side], "classes": 1000},
        "batch": {"per_rank": batch}, "loader": {"mode": "synthetic"}, "optimiser": {"learning_rate": 0.01},
        "train": {"epochs": 100_000, "evaluate_every_epochs": 0}, "measure": {"warmup_steps": 0, "steps": STEPS},
    }  # fmt: skip
    spec = RunSpec.model_validate_json(json.dumps({**plain, **settings}))
    if manifest is None:
        manifest = folder / "data" / "manifest.json"
        prepare(spec.data, manifest, None, Site())
    (folder / "scratch").mkdir(parents=True)
    resolved = Resolved(1, 1, torch.get_num_threads(), DEVICE.type, 1, None, devices=1)
    job = Job("loop", spec, resolved, manifest, folder / "scratch", folder)
    world = join(job, 0)
    with contextlib.closing(TrainingData.open(job, 0)) as data:
        yield Replica(job, world, data)


def marks_of(replica: Replica) -> Any:
    """[steps, 7] seconds of the marks of `measure.steps` steps of our loop."""
    trainer = Trainer(replica)
    trainer.train()
    return trainer.recorder.timer.seconds()


def own_step_s(replica: Replica) -> float:
    """Seconds of a step of our loop, without the first ones."""
    marks = marks_of(replica)
    return float(marks[-1, -1] - marks[FIRST, 0]) / (len(marks) - FIRST)


@pytest.mark.parametrize("name", CASES if HAS_GPU else ["cpu"])
def test_the_loop_beside_a_bare_loop(name: str, record: Record, tmp_path: Path) -> None:
    """Ours copies and normalises each batch; the bare loop's one batch is on the device and normalised."""
    batch, settings = CASES.get(name, (8, {}))
    with one_rank(tmp_path, batch, settings) as replica:
        data, device, autocast = replica.data, replica.world.device, replica.spec.autocast
        x, y = data.train.batch(data.order(0)[0], size=None, augment="none", seed=0, epoch=0)
        x, y = replica.inputs(x).clone(memory_format=torch.preserve_format), y.to(device)
        optimiser, criterion = replica.strategy.optimiser, nn.CrossEntropyLoss()

        def bare_step() -> None:
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(device.type, DTYPES[autocast]) if autocast else contextlib.nullcontext():
                loss = criterion(replica.module(x), y)
            loss.backward()
            optimiser.step()

        found = paired(lambda: own_step_s(replica), lambda: seconds_of(bare_step, STEPS))
        record(**as_values(name, found), bare_samples_per_s=batch / seconds_of(bare_step, STEPS))
    assert not HAS_GPU or found.at_most(MAX_RATIO) != "MISSED"


# The peaks of its data sheet

PEAKS = {"float32": (torch.float32, False), "tf32": (torch.float32, True), "bfloat16": (torch.bfloat16, False)}


def test_matrix_products_stay_below_the_peaks(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TFLOP/s of a large product: the most that a training's share of the peak (`mfu`) can be."""
    monkeypatch.delenv("SCALESTUDY_MACHINE", raising=False)
    known = read_machine(auto_machine(tmp_path), tmp_path).peak_tflops if HAS_GPU else {}
    side = size(8192, 256)
    for name, (dtype, tf32) in PEAKS.items():
        torch.backends.cuda.matmul.allow_tf32 = tf32
        x = torch.randn(side, side, device=DEVICE).to(dtype)
        tflops = 2 * side**3 / median_s(lambda x=x: x @ x) / 1e12
        record(**{name: tflops, f"{name}_of_peak": tflops / known[name] if name in known else None})
        assert not known or 0.4 <= tflops / known[name] <= 1.02


# The loader beside torchvision's, and beside the training

AHEAD, ROUNDS = 2, size(8, 2)
"""Batches that each worker makes ahead, and those that are timed."""


def images_per_s(batches: Iterator[Any]) -> float:
    """Images per second that reach the device, once all that is made ahead was taken: ROUNDS batches per worker."""
    for _ in range(2 * AHEAD * CORES):
        next(batches)
    synchronise()
    begin, seen = time.perf_counter(), 0
    for x, _ in itertools.islice(batches, ROUNDS * CORES):
        seen += len(x)
    synchronise()
    return seen / (time.perf_counter() - begin)


PICTURES = 64, size(4096, 160), size(375, 96)
"""Batch, JPEGs and their height, of the loader and its peers."""


def batches() -> list[Any]:
    """Numbers of the images of each batch of a turn."""
    random = np.random.default_rng(0)
    return [random.integers(0, PICTURES[1], size(PICTURES[0], 8)) for _ in range((ROUNDS + 4 * AHEAD) * CORES)]


def ours_s(manifest: Path, kind: Literal["threads", "processes"]) -> float:
    """Seconds per image of our loader: random crop and flip at 224 with a worker per core."""
    spec = LoaderSpec(workers=CORES, kind=kind, prefetch=AHEAD, augment="crop_flip", size=224)
    dataset = open_dataset(manifest, "train", spec)
    with contextlib.closing(Loader(dataset, [(0, numbers) for numbers in batches()], spec, 0)) as loader:
        return 1 / images_per_s(iter(on_device(loader, DEVICE)))


@rehearsed_in_soak
def test_the_loader_beside_torchvision(record: Record, tmp_path: Path) -> None:
    """Both are made anew in each turn, their start does not count."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    synchronise()  # starts CUDA: a loader made before would lock no page
    manifest = images(tmp_path, *PICTURES[1:])
    files = open_dataset(manifest, "train").files
    crop_and_flip = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])

    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, number: int) -> Any:
            return crop_and_flip(decode_jpeg(read_file(str(files[number])), ImageReadMode.RGB)), 0

    def theirs_s() -> float:
        loader = DataLoader(
            Files(), batch_sampler=batches(), num_workers=CORES, prefetch_factor=AHEAD, pin_memory=HAS_GPU
        )
        return 1 / images_per_s((x.to(DEVICE, non_blocking=True), y) for x, y in loader)

    for kind in get_args(LoaderSpec.model_fields["kind"].annotation):
        found = paired(theirs_s, functools.partial(ours_s, manifest, kind))
        record(**as_values(f"{kind}_over_torchvision", found), **{kind: 1 / ours_s(manifest, kind)}, cores=CORES)


@rehearsed_in_soak
@pytest.mark.parametrize("decoder", ["cpu", "mixed"] if HAS_GPU else ["cpu"])
def test_the_loader_beside_dali(decoder: str, record: Record, tmp_path: Path) -> None:
    """NVIDIA DALI with as many threads; `mixed` decodes, crops and resizes on the GPU."""
    pytest.importorskip("nvidia.dali")
    from nvidia.dali import fn, pipeline_def

    synchronise()
    manifest = images(tmp_path, *PICTURES[1:])
    files = [str(path) for path in open_dataset(manifest, "train").files]

    @pipeline_def(batch_size=size(PICTURES[0], 8), num_threads=CORES, device_id=0 if HAS_GPU else None)
    def pictures() -> Any:
        data, label = fn.readers.file(files=files, labels=[0] * len(files), random_shuffle=True)
        image = fn.decoders.image_random_crop(data, device=decoder, random_area=[0.08, 1.0])
        image = fn.flip(fn.resize(image, size=(224, 224), antialias=True), horizontal=fn.random.coin_flip())
        return image.gpu() if HAS_GPU else image, label

    def theirs_s() -> float:
        pipe = pictures()
        pipe.build()
        return 1 / images_per_s(pipe.run() for _ in batches())

    found = paired(theirs_s, functools.partial(ours_s, manifest, "threads"))
    record(
        **as_values(f"threads_over_dali_{decoder}", found), dali=1 / theirs_s(), threads=1 / ours_s(manifest, "threads")
    )


COMMON = (f"model={NETWORK[0]}", f"batch.per_rank={size(64, 8)}", "train.epochs=1000", "train.evaluate_every_epochs=0",
          "optimiser.learning_rate=0.01", *(("measure.minutes=0.085",) if HAS_GPU else ("measure.steps=6", "measure.warmup_steps=1")))  # fmt: skip
REAL = ("autocast=bfloat16", "memory_format=channels_last") if HAS_GPU else ()
MADE = synthetic(size(1 << 20, 64), size(224, 32), classes=1000)
JPEGS = "data=" + json.dumps(
    {"source": "synthetic_jpeg", "samples": size(2048, 64), "width": size(500, 157), "height": size(375, 32),
     "mean_kib": size(100, 8)}
)  # fmt: skip


@rehearsed_in_soak
def test_cores_for_this_gpu_and_the_emulated_device_beside_the_real_one(record: Record, tmp_path: Path) -> None:
    """By number of loader workers: images/s and utilisation of a real run; with 4, in turns with one emulated at its pace."""
    alone = valid(tried(tmp_path / "alone", *COMMON, *REAL, MADE, "loader.mode=synthetic"), is_timed=True)
    rate = alone["throughput_samples_per_s"]
    record(from_memory=rate, from_memory_utilisation=alone["device_utilisation"])
    table = tmp_path / "config/reference/step_times.csv"
    table.parent.mkdir(parents=True)
    row = f"{NETWORK[0]},this_gpu,{size(64, 8)},{rate:.2f},measured here\n"
    table.write_text(f"model,accelerator,batch,images_per_s,source\n{row}", encoding="utf-8")
    ratios = []
    for workers in (1, 4, 4, 4, CORES) if HAS_GPU else (1,):
        loader = f"loader={{workers: {workers}, augment: crop_flip, cache: warm, size: {size(224, 32)}}}"
        data = (JPEGS, loader, f"measure.loader_batches={size(8, 2)}")
        out = tmp_path / f"{workers}-{len(ratios)}"
        real = valid(tried(out / "real", *COMMON, *REAL, *data, cwd=tmp_path), is_timed=True)
        record(**{f"{workers}_workers_{name}": real[name] for name in ("loader_samples_per_s", "throughput_samples_per_s", "device_utilisation")})  # fmt: skip
        record(workers_needed=rate / (real["loader_samples_per_s"] / workers))
        if workers == 4 or not HAS_GPU:
            other = valid(tried(out / "other", *COMMON, *data, "device=emulated:this_gpu", cwd=tmp_path), is_timed=True)
            ratios.append(other["throughput_samples_per_s"] / real["throughput_samples_per_s"])
    record(emulated_over_real=ratios)
    assert not HAS_GPU or abs(statistics.median(ratios) - 1) <= 0.05


STEPS_BESIDE, LEFT_OUT = size(80, 6), size(20, 2)
"""Steps of a turn, and the first ones, which do not count: the loader gets ahead."""
BESIDE = {"64_threads": (64, 8, "threads"), "64_processes": (64, 8, "processes"), "256_threads": (256, 12, "threads")}


@pytest.mark.parametrize("name", BESIDE if HAS_GPU else ["cpu"])
def test_the_step_beside_a_loader_that_decodes(name: str, record: Record, tmp_path: Path) -> None:
    """A step that finds its batch, while workers decode the next ones, over one on images from memory."""
    batch, workers, kind = BESIDE.get(name, (8, 1, "threads"))
    manifest = images(tmp_path, size(4096, 160), size(375, 96))
    loader = {"workers": workers, "kind": kind, "augment": "crop_flip", "size": NETWORK[1]}
    data = {"source": "synthetic_jpeg", "samples": size(4096, 160), "width": 439, "height": 375, "mean_kib": 24}
    settings = {**(FAST | LAST if HAS_GPU else {}), "measure": {"warmup_steps": 0, "steps": STEPS_BESIDE}}
    waits: dict[str, list[float]] = {"decoding": [], "memory": []}
    wholes: dict[str, list[float]] = {"decoding": [], "memory": []}

    def seconds(side: str, replica: Replica) -> float:
        """Seconds of a step, less its wait for data; its wait and the whole of it are noted."""
        marks = marks_of(replica)[LEFT_OUT:]
        wait, whole = (marks[:, 1] - marks[:, 0]).sum() / len(marks), (marks[-1, -1] - marks[0, 0]) / len(marks)
        waits[side].append(float(wait))
        wholes[side].append(float(whole))
        return float(whole - wait)

    with (
        one_rank(tmp_path / "jpeg", batch, {**settings, "loader": loader, "data": data}, manifest) as decoding,
        one_rank(tmp_path / "memory", batch, settings) as from_memory,
    ):
        found = paired(lambda: seconds("decoding", decoding), lambda: seconds("memory", from_memory))
    record(**as_values(f"{name}_over_memory", found), step_s=wholes, wait_s=waits)
