"""Correctness on a GPU: clocks, weights, the loader's copies, devices and messages, memory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from scalestudy.data.load.loader import on_device
from scalestudy.data.load.normalise import normalise
from scalestudy.hardware import bus_ids
from scalestudy.measure.devices import ON_EACH, DeviceMeter, energy_j, samples_of
from scalestudy.measure.intervals import intersection, total, union
from scalestudy.measure.system import INTERVAL_S, Sampler
from scalestudy.measure.timers import StepTimer
from tests.gpu.common import (
    DETERMINISTIC,
    DEVICE,
    HAS_GPU,
    ROOT,
    Record,
    environment,
    images,
    loader_of,
    matrices,
    needs_gpu,
    output_of,
    rehearsed_in_soak,
    seconds_of,
    size,
    start,
    synchronise,
    synthetic,
    tried,
    valid,
)  # fmt: skip

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
EXACT = ("model=resnet18", synthetic(2048, 64)) if HAS_GPU else ("model=small_cnn",)
"""Torch can make all of ResNet-18's operations deterministic on a GPU, and not small_cnn's AdaptiveAvgPool2d."""
KEPT = ("optimiser.learning_rate=0.05", "keep=weights")


# Clocks


def timed_steps(steps: int, work: Any) -> tuple[np.ndarray, float]:
    """Marks of the trainer's timer, float64 [steps, 7], and the wall time of all steps."""
    timer = StepTimer(DEVICE)
    synchronise()
    begin = time.perf_counter()
    for _ in range(steps):
        timer.begin()
        for phase in ("data", "convert", "forward"):
            timer.mark(phase)
        work()
        for phase in ("backward", "exchange"):
            timer.mark(phase)
        timer.end()
    synchronise()
    return timer.seconds(), time.perf_counter() - begin


def test_the_parts_of_steps_add_up_to_the_wall_time(record: Record) -> None:
    work = matrices(size(4096, 256))
    work()
    marks, wall_s = timed_steps(size(2000, 50), work)
    span, parts = float(marks[-1, -1] - marks[0, 0]) / wall_s, float(np.diff(marks, axis=1).sum()) / wall_s
    record(span_over_wall=span, parts_over_wall=parts)
    assert (np.diff(marks.ravel()) >= 0).all()
    if HAS_GPU:
        assert 0.99 <= span <= 1.01 and 0.99 <= parts <= 1.01


def of_device(rows: Iterable[Any]) -> list[Any]:
    """Kernels and copies of a profile, without the names given to stretches of work."""
    return [row for row in rows if row.device_type == DeviceType.CUDA and not getattr(row, "is_user_annotation", False)]


@needs_gpu
def test_compute_time_agrees_with_the_kernels_of_the_profiler(record: Record) -> None:
    work = matrices(4096)
    work()
    synchronise()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        marks, _ = timed_steps(2000, work)
    kernels_s = sum(row.self_device_time_total for row in of_device(trace.key_averages())) / 1e6
    ratio = float(np.diff(marks, axis=1)[:, 3].sum()) / kernels_s
    record(compute_over_kernels=ratio)
    assert abs(ratio - 1) <= 0.01


# Weights


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "weights.safetensors")


def largest_difference(one: Path, other: Path) -> float:
    """Largest absolute difference between the weights of two runs."""
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel())


@rehearsed_in_soak
def test_two_runs_and_one_stopped_in_between_have_the_same_weights(record: Record, tmp_path: Path) -> None:
    settings = (*EXACT, *KEPT, f"train.epochs={size(16, 8)}", f"checkpoint.every_steps={size(100, 10)}")
    whole, again, stopped = (tmp_path / name for name in ("whole", "again", "stopped"))
    for folder in (whole, again):
        valid(tried(folder, *settings, before=DETERMINISTIC))
    process = start("try", f"device={DEVICE.type}", *settings, "--out", str(stopped), before=DETERMINISTIC)
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end and not list(stopped.glob("checkpoint/step-*")):
        time.sleep(0.02)
    (stopped / "stop").touch()
    output = output_of(process)
    assert process.returncode == 75, output[-1000:]
    valid(result := tried(stopped, *settings, before=DETERMINISTIC))
    record(repeated=largest_difference(whole, again), resumed=largest_difference(whole, stopped))
    assert len(result["links"]) == 2
    assert largest_difference(whole, again) == largest_difference(whole, stopped) == 0.0


@rehearsed_in_soak
def test_float64_agrees_with_the_cpu(record: Record, tmp_path: Path) -> None:
    settings = ("model=small_cnn", "dtype=float64", "measure.warmup_steps=0", "measure.steps=20", "keep=weights")
    tried(tmp_path / "cpu", *settings, "device=cpu")
    tried(tmp_path / "here", *settings)
    record(largest_difference=largest_difference(tmp_path / "cpu", tmp_path / "here"))
    assert largest_difference(tmp_path / "cpu", tmp_path / "here") <= 1e-10


@rehearsed_in_soak
@pytest.mark.parametrize("autocast", ["bfloat16", "float16"] if HAS_GPU else ["bfloat16"])
def test_mixed_precision_learns(autocast: str, record: Record, tmp_path: Path) -> None:
    settings = ("model=small_cnn", f"autocast={autocast}", f"train.epochs={size(20, 1)}", *KEPT)
    metrics = valid(tried(tmp_path / autocast, *settings))
    record(accuracy=metrics["accuracy"], loss=metrics["loss"])
    assert not HAS_GPU or metrics["accuracy"] > 0.9
    assert all(
        tensor.dtype == torch.float32 for tensor in weights(tmp_path / autocast).values() if tensor.is_floating_point()
    )


# The loader's copies


@needs_gpu
def test_batches_lie_in_pinned_memory(tmp_path: Path) -> None:
    torch.zeros(1, device=DEVICE)
    for kind in ("threads", "processes", "threads"):  # memory of processes is given back before the last
        with contextlib.closing(loader_of(images(tmp_path, 256), 32, kind=kind)) as loader:
            pinned = [x.is_pinned() and y.is_pinned() for x, y in loader]
        assert pinned and all(pinned), kind


def queue_copies(count: int, streams: list[Any], source: torch.Tensor, targets: list[torch.Tensor]) -> None:
    """Keep the copy engines busy: a later copy begins only after these, of 5 ms or more each."""
    for stream, target in zip(streams, targets, strict=True):
        with torch.cuda.stream(stream):
            for _ in range(count):
                target.copy_(source, non_blocking=True)


def without_waiting(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """As `on_device`, but buffers return to the loader before their copies have ended: the control, which is wrong."""
    side = torch.cuda.Stream(device)
    for x, y in batches:
        with torch.cuda.stream(side):
            copied = x.to(device, non_blocking=True), y
        yield copied


def test_no_batch_is_overwritten_while_it_is_copied(record: Record, tmp_path: Path) -> None:
    manifest, few = images(tmp_path, size(2048, 64)), {"workers": size(4, 1), "prefetch": 1}
    streams = [torch.cuda.Stream(DEVICE) for _ in range(4)] if HAS_GPU else []
    source = torch.empty(size(256 << 20, 0), dtype=torch.uint8, pin_memory=HAS_GPU)
    targets = [torch.empty_like(source, device=DEVICE) for _ in streams]
    with contextlib.closing(loader_of(manifest, 32, pin_memory=False)) as loader:
        right = [x.clone() for x, _ in loader]

    def wrong(copier: Any, at_first: int, at_each: int) -> int:
        with contextlib.closing(loader_of(manifest, 32, **few)) as loader:
            queue_copies(at_first, streams, source, targets)
            seen = []
            for x, _ in copier(loader, DEVICE):
                queue_copies(at_each, streams, source, targets)
                seen.append(x.clone() if copier is on_device else x)
            synchronise()
            return sum(not torch.equal(one.cpu(), other) for one, other in zip(seen, right, strict=True))

    assert wrong(on_device, 1, 1) == 0
    if HAS_GPU:
        control = wrong(without_waiting, 100, 0)
        record(batches=len(right), wrong_without_the_wait=control)
        assert control > 0, "nothing was provoked"


@needs_gpu
def test_copies_are_hidden_behind_compute(record: Record, tmp_path: Path) -> None:
    work = matrices(8192)
    with contextlib.closing(loader_of(images(tmp_path, 2048), 64)) as loader:
        stream = iter(on_device(loader, DEVICE))
        next(stream)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
            for _ in range(20):
                for _ in range(5):
                    work()  # before the copy, the first one too: each has something to hide behind
                next(stream)
            synchronise()
    spans = [(row.name, (row.time_range.start, row.time_range.end)) for row in of_device(trace.events())]
    copies = union([span for name, span in spans if "HtoD" in name])
    kernels = union([span for name, span in spans if "Memcpy" not in name and "Memset" not in name])
    hidden = total(intersection(copies, kernels)) / total(copies)
    record(hidden=hidden, copies=len(copies))
    assert hidden >= 0.95


def test_normalising_on_the_device_equals_the_cpu() -> None:
    x = torch.randint(0, 256, (16, 3, 96, 96), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    here = normalise(x.to(DEVICE), torch.float32, DEVICE).cpu()
    assert float((normalise(x, torch.float32, "cpu") - here).abs().max()) <= 1 / 255


# Devices and messages


@rehearsed_in_soak
def test_ranks_share_a_gpu_over_gloo_only_where_they_are_allowed_to(record: Record, tmp_path: Path) -> None:
    own = ("model=small_cnn", KEPT[0])
    alone = tried(tmp_path / "one", *own, "strategy=allreduce", "ranks=1", f"train.epochs={size(60, 1)}")
    valid(alone)
    assert alone["resolved"]["backend"] == ("nccl" if HAS_GPU else "gloo")
    ranks = f"ranks={torch.cuda.device_count() + 1 if HAS_GPU else 2}"
    shared = (ranks, *own, "launch.oversubscribe=true")
    for strategy in ("allreduce", "ring", "parameter_server") if HAS_GPU else ("ring",):
        result = tried(tmp_path / strategy, *shared, f"strategy={strategy}", f"train.epochs={size(20, 1)}")
        record(**{strategy: valid(result)["throughput_samples_per_s"]})
        assert result["resolved"]["backend"] == "gloo"
        assert not HAS_GPU or result["oversubscribed"] is True
    if HAS_GPU:
        refused = tried(tmp_path / "refused", *shared, "strategy=halving_doubling")
        crowded = tried(tmp_path / "crowded", ranks, *own, "strategy=allreduce")
        assert refused["status"] == crowded["status"] == "skipped"
        assert "NCCL refuses two ranks on one GPU" in refused["reason"] and "GPU" in crowded["reason"]


@needs_gpu
def test_the_machine_file_has_this_gpu(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scalestudy.spec.auto_machine import auto_machine
    from scalestudy.spec.config import read_machine

    monkeypatch.delenv("SCALESTUDY_MACHINE", raising=False)
    machine = read_machine(auto_machine(tmp_path), tmp_path)
    monkeypatch.delenv("SCALESTUDY_MACHINE", raising=False)
    record(peaks_tflops=machine.peak_tflops, source=machine.sources.get("peak_tflops"))
    assert machine.devices_per_node == torch.cuda.device_count()
    assert machine.device_name == torch.cuda.get_device_name(0)


@needs_gpu
@pytest.mark.parametrize("visible", [None, "0", "", "-1", "0,99", "99,0", "uuid"])
def test_visible_devices_are_counted_as_cuda_does(visible: str | None) -> None:
    # Not torch.cuda.device_count(), which asks NVML as we do.
    code = "import torch; from scalestudy.hardware import accelerators as a; print(a().count, torch._C._cuda_getDeviceCount())"
    if visible == "uuid":
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"GPU-[0-9a-f-]+", listed)
        visible = found[0] if found else "0"
    place = environment() if visible is None else environment(CUDA_VISIBLE_DEVICES=visible)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=place, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"(\d+) \1\n", done.stdout), done.stdout


def test_nvml_reads_the_device_at_the_stated_rate(record: Record) -> None:
    absent = DeviceMeter(["ffff:ff:1f.0"])
    absent.close()
    assert absent.unmeasured, "a missing device is not reported"
    if not HAS_GPU:
        return
    sampler, work = Sampler([os.getpid()], os.getpgrp(), bus_ids(1)), matrices(8192)
    sampler.start()
    begin = time.perf_counter()
    while time.perf_counter() - begin < 8:
        seconds_of(work)
    end = time.perf_counter()
    sampler.stop()
    rows = sampler.rows
    utilisation = fmean(samples_of(rows, "device_utilisation", begin + 2, end))
    power_w = fmean(samples_of(rows, "device_power_w", begin + 2, end - 1))
    joules = energy_j(rows, begin + 2, end - 1)
    assert power_w and joules and utilisation
    counter_w = joules / (end - begin - 3)
    columns = ["devices", "device_throttle", *(name for name, *_ in ON_EACH)]
    record(utilisation=utilisation, power_w=power_w, counter_w=counter_w, **{name: rows[-2][name] for name in columns})
    assert not sampler.unmeasured and all(set(columns) <= row.keys() for row in rows)
    assert np.diff([row["clock_s"] for row in rows[:-1]]).max() <= 1.5 * INTERVAL_S
    assert utilisation > 0.9
    assert counter_w == pytest.approx(power_w, rel=0.1)


@rehearsed_in_soak
def test_a_run_has_energy_per_sample_where_there_is_a_gpu(record: Record, tmp_path: Path) -> None:
    window = "measure.minutes=0.1" if HAS_GPU else "measure.steps=20"
    model = "model=resnet50" if HAS_GPU else "model=small_cnn"
    data = synthetic(size(1 << 20, 2048), size(96, 8))
    more = ("batch.per_rank=64", "loader.mode=synthetic", window, "train.evaluate_every_epochs=0")
    made = tried(tmp_path / "energy", model, data, *more)
    assert ({"driver", "nccl"} <= set(made["instrument"])) == HAS_GPU
    metrics = valid(made, is_timed=True)
    names = ("j_per_sample", "device_utilisation", "device_power_w")
    record(**{name: metrics[name] for name in names})
    assert all((metrics[name] is not None) == HAS_GPU for name in names)


# Memory

ONCE = ("measure.steps=2", "measure.warmup_steps=1", "train.evaluate_every_epochs=0", "loader.mode=synthetic")


@needs_gpu
def test_the_largest_batch_trains_and_more_does_not_fit(record: Record, tmp_path: Path) -> None:
    process = start("largest-batch", "model=resnet50", "device=cuda", synthetic(4096, 224))
    output = output_of(process)
    assert process.returncode == 0, output[-1500:]
    largest = int(output.strip().split("\n")[-1].rpartition(":")[2].replace(",", ""))
    reasons = []
    for batch in (largest, max(round(1.05 * largest), largest + 8), 8192):
        settings = ("model=resnet50", synthetic(3 * batch, 224), f"batch.per_rank={batch}", *ONCE)
        reasons.append(tried(tmp_path / str(batch), *settings)["reason"])
        shutil.rmtree(tmp_path / str(batch) / "data", ignore_errors=True)
    record(largest_batch=largest, reasons=reasons)
    assert not str(reasons[0]).startswith("does not fit")
    assert all(reason.startswith("does not fit: ") and "allocated at the peak" in reason for reason in reasons[1:])


@needs_gpu
def test_a_killed_rank_frees_the_device(record: Record, tmp_path: Path) -> None:
    free = torch.cuda.mem_get_info()[0]
    words = ["try", "device=cuda", "model=resnet50", "batch.per_rank=64", "train.epochs=1000", synthetic(4096, 224)]
    process = start(*words, "--out", str(tmp_path / "killed"))
    os.kill(pid_on_device(process.pid), signal.SIGKILL)
    output = output_of(process)
    end = time.monotonic() + 10
    while (held := free - torch.cuda.mem_get_info()[0]) > 64 << 20 and time.monotonic() < end:
        time.sleep(0.2)
    record(held_mib=held / 2**20)
    assert process.returncode == 1 and "rank 0" in output
    assert held < 64 << 20


def pid_on_device(parent: int) -> int:
    """The descendant that computes on the GPU; in a container nvidia-smi may list no process."""
    import psutil

    end = time.monotonic() + 90
    while time.monotonic() < end:
        with contextlib.suppress(psutil.Error, OSError):
            for child in reversed(psutil.Process(parent).children(recursive=True)):
                maps = Path(f"/proc/{child.pid}/maps").read_text(errors="replace")
                if "/dev/nvidia" in maps:
                    time.sleep(5)
                    return child.pid
        time.sleep(0.5)
    pytest.skip("no process of the run was seen on the device")
