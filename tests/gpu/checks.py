"""Correctness on a GPU: clocks, equal weights, the loader's copies; `devices.py` has the rest."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tests.gpu.groups import Group
from tests.gpu.suite import Suite, Values, as_text, estimate, paired, seconds_of, synchronise
from tests.gpu.tries import DETERMINISTIC, ROOT, call_after, environment, tried, valid

Span = tuple[float, float]
"""Begin and end."""
EXACT = {
    # On a GPU only models all of whose operations torch can make deterministic there: AdaptiveAvgPool2d to more than one
    # pixel, as small_cnn has it, is not among them (torch.use_deterministic_algorithms). Steps long enough to stop between two.
    "cuda": ("model=resnet18", "data={source: synthetic, samples: 2048, shape: [3, 64, 64]}"),
    "cpu": ("model=small_cnn",),
}
KEPT = ("optimiser.learning_rate=0.05", "keep=weights")


# Clocks


def _timed_steps(suite: Suite, steps: int, work: Any) -> tuple[np.ndarray, float]:
    """float64 [steps, 7] as the trainer's timer has them, and the wall time of all steps."""
    from scalestudy.measure.timers import StepTimer

    timer = StepTimer(suite.device)
    synchronise(suite.device)
    begin = time.perf_counter()
    for _ in range(steps):
        timer.begin()
        for phase in ("data", "convert", "forward"):
            timer.mark(phase)
        work()
        for phase in ("backward", "exchange"):
            timer.mark(phase)
        timer.end()
    synchronise(suite.device)
    return timer.seconds(), time.perf_counter() - begin


def _matrices(suite: Suite, side: int) -> Any:
    x = torch.randn(side, side, device=suite.device)
    return lambda: x @ x


def step_times_add_up_to_wall_time(suite: Suite) -> Values:
    """2,000 steps: the parts of all steps against one clock on the wall, within 1 %."""
    work = _matrices(suite, suite.size(4096, 256))
    work()
    marks, wall_s = _timed_steps(suite, suite.size(2000, 50), work)
    ratio = float(marks[-1, -1] - marks[0, 0]) / wall_s
    inside = float(np.diff(marks, axis=1).sum()) / wall_s
    assert suite.dry or 0.99 <= ratio <= 1.01, f"events span {ratio:.4f} of the wall time"
    assert suite.dry or 0.99 <= inside <= 1.01, f"the parts of the steps sum to {inside:.4f} of the wall time"
    assert (np.diff(marks.ravel()) >= 0).all(), "a mark lies before the one that it follows"
    return {"span_over_wall": ratio, "parts_over_wall": inside}


def _is_annotation(row: Any) -> bool:
    """Whether a row is a name given to a stretch of work, which holds kernels; some versions of torch have none such."""
    return bool(getattr(row, "is_user_annotation", False))


def kernel_seconds(rows: Iterable[Any]) -> float:
    """Time of the device in rows of a profile: those of the device alone, since rows of the CPU carry their kernels' too."""
    on_device = [row for row in rows if row.device_type == DeviceType.CUDA and not _is_annotation(row)]
    return float(sum(row.self_device_time_total for row in on_device)) / 1e6


def step_times_agree_with_the_profiler(suite: Suite) -> Values:
    """2,000 steps: the compute phase against the durations of its kernels, of some milliseconds each, within 1 %."""
    suite.need_gpu("kernel times of torch.profiler")
    work = _matrices(suite, 4096)
    work()
    synchronise(suite.device)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        marks, _ = _timed_steps(suite, 2000, work)
    kernels_s = kernel_seconds(trace.key_averages())
    assert kernels_s, "the profile has no kernel"
    compute_s = float(np.diff(marks, axis=1)[:, 3].sum())
    assert abs(compute_s / kernels_s - 1) <= 0.01, f"compute {compute_s:.5f} s, kernels {kernels_s:.5f} s"
    return {"compute_over_kernels": compute_s / kernels_s}


def measuring_costs_at_most_one_percent(suite: Suite) -> Values:
    """Steps of some milliseconds with the timer and without."""
    work, steps = _matrices(suite, suite.size(4096, 512)), suite.size(300, 20)

    def plain() -> float:
        return seconds_of(suite.device, lambda: [work() for _ in range(steps)])

    found = paired(suite, lambda: _timed_steps(suite, steps, work)[1], plain)
    values = estimate("with_over_without", found)
    assert suite.dry or found.low <= 1.01, f"{as_text(values)}: more than 1.01"
    return values


# The same weights


def _weights(suite: Suite, name: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(suite.folder(name) / "weights.safetensors")


def _largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one if one[name].numel())


def two_runs_have_the_same_weights_bit_for_bit(suite: Suite) -> Values:
    """With torch's deterministic algorithms."""
    kinds = {"mlp": ("model=mlp",)} | ({} if suite.dry else {"resnet18": EXACT["cuda"]})
    found: Values = {}
    for name, settings in kinds.items():
        for turn in ("a", "b"):
            epochs = f"train.epochs={suite.size(100 if name == 'mlp' else 3, 1)}"
            valid(tried(suite, f"twice-{name}-{turn}", *settings, *KEPT, epochs, before=DETERMINISTIC))
        found[name] = _largest_difference(*(_weights(suite, f"twice-{name}-{turn}") for turn in ("a", "b")))
    assert set(found.values()) == {0.0}, f"weights differ by up to {found}"
    return found


def a_run_that_was_stopped_ends_with_the_same_weights(suite: Suite) -> Values:
    """Stopped by a file after some steps, resumed, and compared bit for bit with one that was not."""
    epochs = f"train.epochs={suite.size(16, 8)}"
    settings = (*EXACT[suite.device.type], *KEPT, epochs, f"checkpoint.every_steps={suite.size(100, 10)}")
    valid(tried(suite, "whole", *settings, before=DETERMINISTIC))
    out = suite.folder("stopped")
    words = ["try", f"device={suite.device.type}", *settings, "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-c", call_after(DETERMINISTIC), *words], cwd=ROOT, env=environment(True),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    end = time.monotonic() + min(120, suite.left_s)
    while process.poll() is None and time.monotonic() < end and not list(out.glob("checkpoint/step-*")):
        time.sleep(0.02)
    (out / "stop").touch()
    try:
        output, _ = process.communicate(timeout=min(120, suite.left_s))
    finally:
        process.kill()
    stopped = process.returncode == 75
    result = tried(suite, "stopped", *settings, before=DETERMINISTIC)
    valid(result)
    difference = _largest_difference(_weights(suite, "whole"), _weights(suite, "stopped"))
    assert stopped, f"the run ended before it could be stopped (status {process.returncode}): {output[-300:]}"
    assert difference == 0.0, f"weights differ by up to {difference:g}"
    return {"largest_difference": difference, "attempts": len(result["links"])}


def float64_agrees_with_the_cpu(suite: Suite) -> Values:
    """20 steps in float64 on both, to 1e-10."""
    settings = ("model=small_cnn", "dtype=float64", "measure.warmup_steps=0", "measure.steps=20", "keep=weights")
    tried(suite, "double-cpu", *settings, "device=cpu")
    tried(suite, "double-here", *settings)
    difference = _largest_difference(_weights(suite, "double-cpu"), _weights(suite, "double-here"))
    assert difference <= 1e-10, f"weights differ by up to {difference:g}"
    return {"largest_difference": difference}


def mixed_precision_learns_as_well(suite: Suite) -> Values:
    """Digits in float32, bfloat16 and float16 with loss scaling: accuracies within 0.03 of each other."""
    accuracies: Values = {}
    types = ("bfloat16",) if suite.dry else ("bfloat16", "float16")
    for name in ("float32", *types):
        settings = [] if name == "float32" else [f"autocast={name}"]
        result = tried(
            suite, f"learns-{name}", "model=small_cnn", f"train.epochs={suite.size(30, 4)}", "optimiser.learning_rate=0.05",
            *settings,
        )  # fmt: skip
        accuracies[name] = valid(result)["accuracy"]
    assert min(accuracies.values()) > 0.8, f"{accuracies}"
    assert max(accuracies.values()) - min(accuracies.values()) <= 0.03, f"{accuracies}"
    return accuracies


def _losses(suite: Suite, name: str) -> np.ndarray:
    import pandas as pd

    return pd.read_parquet(suite.folder(name) / "steps.parquet")["loss"].to_numpy()


def channels_last_and_compile_learn_alike(suite: Suite) -> Values:
    """The loss curve of 40 steps in float64, against the plain one: the largest difference relative to the first loss.

    The first ten steps are held to 1e-6. The rounding of another order of sums grows with every step of a network with
    BatchNorm, in float32 up to tenths; how far it has come at the end is told.
    """
    side, batch = suite.size(64, 32), suite.size(32, 8)
    data = f"data={{source: synthetic, samples: {16 * batch}, shape: [3, {side}, {side}]}}"
    model = "model=small_cnn" if suite.dry else "model=resnet18"
    common = (data, model, "dtype=float64", f"batch.per_rank={batch}", "measure.warmup_steps=2",
              f"measure.steps={suite.size(38, 10)}", "train.epochs=9", "train.evaluate_every_epochs=0",
              "optimiser.learning_rate=0.01")  # fmt: skip
    tried(suite, "curve-plain", *common)
    plain = _losses(suite, "curve-plain")
    found: Values = {}
    forms = {"channels_last": "memory_format=channels_last"} | ({} if suite.dry else {"compile": "compile=true"})
    for name, setting in forms.items():
        tried(suite, f"curve-{name}", *common, setting)
        apart = np.abs(_losses(suite, f"curve-{name}") - plain) / plain[0]
        found[f"{name}_first_10"], found[f"{name}_all"] = float(apart[:10].max()), float(apart.max())
    assert max(value for name, value in found.items() if name.endswith("_first_10")) <= 1e-6, f"{found}"
    return found


# The loader


def _pictures(suite: Suite, samples: int, side: int = 256) -> Path:
    """A prepared dataset of made JPEGs; its manifest."""
    from pydantic import TypeAdapter

    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.spec.config import Site
    from scalestudy.spec.run import Data

    plain = {"source": "synthetic_jpeg", "samples": samples, "width": side + 64, "height": side, "mean_kib": 24}
    manifest = suite.folder(f"images-{samples}-{side}") / "manifest.json"
    prepare(TypeAdapter(Data).validate_python(plain), manifest, None, Site())
    return manifest


def _loader(suite: Suite, manifest: Path, batch: int, **options: Any) -> Any:
    from scalestudy.data.load.dataset import open_dataset
    from scalestudy.data.load.loader import Loader
    from scalestudy.spec.run import Loader as LoaderSpec

    spec = LoaderSpec.model_validate({"workers": suite.size(8, 1), "augment": "crop_flip", **options})
    dataset = open_dataset(manifest, "train", spec)
    order = np.arange(dataset.samples)
    plan = [(0, order[i : i + batch]) for i in range(0, len(order) - batch + 1, batch)]
    return Loader(dataset, plan, spec, seed=1)


def batches_lie_in_pinned_memory(suite: Suite) -> Values:
    """What `loader.pin_memory` promises."""
    suite.need_gpu("page-locked memory")
    torch.zeros(1, device=suite.device)
    found: Values = {}
    for kind in ("threads", "processes", "threads"):  # memory of processes is given back before the last
        with contextlib.closing(_loader(suite, _pictures(suite, 256), 32, kind=kind)) as loader:
            pinned = [bool(x.is_pinned() and y.is_pinned()) for x, y in loader]
        assert pinned, "the loader gave no batch"
        assert all(pinned), f"{kind}: {pinned.count(False)} of {len(pinned)} batches are pageable"
        found[kind] = len(pinned)
    return found


class BusyCopyEngines:
    """Keeps the engines that copy from host to device at work, so that a copy that is queued behind begins much later."""

    def __init__(self, suite: Suite, streams: int = 4, mib: int = 256) -> None:
        self.device, size = suite.device, mib << 20
        self.streams = [] if suite.dry else [torch.cuda.Stream(suite.device) for _ in range(streams)]
        pinned = not suite.dry
        self.source = torch.empty(size if pinned else 0, dtype=torch.uint8, pin_memory=pinned)
        self.targets = [torch.empty(size, dtype=torch.uint8, device=suite.device) for _ in self.streams]

    def queue(self, copies: int) -> None:
        """So many copies of 256 MiB on each stream, of 5 ms or more each."""
        for stream, target in zip(self.streams, self.targets, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(copies):
                    target.copy_(self.source, non_blocking=True)


def without_waiting(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """As `on_device`, but a batch's buffer returns to the loader before its copy has ended: the control, which is wrong."""
    side = torch.cuda.Stream(device)
    for x, y in batches:
        with torch.cuda.stream(side):
            copied = x.to(device, non_blocking=True), y
        yield copied


def no_batch_is_overwritten_while_it_is_copied(suite: Suite) -> Values:
    """While other copies hold the engines up, batches have the pixels of a loader without a GPU.

    The same without the wait for each copy has to show wrong pixels: else nothing was provoked.
    """
    from scalestudy.data.load.loader import on_device

    manifest, batch = _pictures(suite, suite.size(2048, 64)), 32
    few = {"workers": suite.size(4, 1), "prefetch": 1}  # few buffers, which come round soon
    with contextlib.closing(_loader(suite, manifest, batch, pin_memory=False)) as loader:
        right = [x.clone() for x, _ in loader]

    def wrong(copier: Any, at_first: int, at_each: int) -> int:
        busy = BusyCopyEngines(suite)
        with contextlib.closing(_loader(suite, manifest, batch, **few)) as loader:
            busy.queue(at_first)
            seen = []
            for x, _ in copier(loader, suite.device):
                busy.queue(at_each)
                seen.append(x.clone() if copier is on_device else x)
            synchronise(suite.device)
            return sum(not torch.equal(one.cpu(), other) for one, other in zip(seen, right, strict=True))

    differing = wrong(on_device, 1, 1)
    assert differing == 0, f"{differing} of {len(right)} batches differ from what was decoded"
    if suite.dry:
        return {"batches": len(right)}
    control = wrong(without_waiting, 100, 0)
    assert control > 0, f"without the wait no batch of {len(right)} is wrong either: nothing was provoked"
    return {"batches": len(right), "wrong_without_the_wait": control}


def copies_are_hidden_behind_compute(suite: Suite) -> Values:
    """At least 95 % of the time of copies to the device runs while a kernel computes, where compute takes longer."""
    suite.need_gpu("copies to a device")
    from scalestudy.data.load.loader import on_device

    work = _matrices(suite, 8192)
    with contextlib.closing(_loader(suite, _pictures(suite, 2048), 64)) as loader:
        stream = iter(on_device(loader, suite.device))
        next(stream)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
            for _ in range(20):
                for _ in range(5):
                    work()  # before the copy, the first one too: each has something to hide behind
                next(stream)
            synchronise(suite.device)
    copies, kernels = copies_and_kernels(trace.events())
    assert copies, "the trace has no copy to the device"
    hidden = sum(_overlap(copy, kernels) for copy in copies) / sum(end - begin for begin, end in copies)
    assert hidden >= 0.95, f"{hidden:.1%} of the time of {len(copies)} copies is hidden"
    return {"hidden": hidden, "copies": len(copies)}


def copies_and_kernels(events: Iterable[Any]) -> tuple[list[Span], list[Span]]:
    """When the device copied from the host, and, sorted, when a kernel computed; events of the device alone."""
    of_device = [event for event in events if event.device_type == DeviceType.CUDA and not _is_annotation(event)]
    spans = [(event.name, (event.time_range.start, event.time_range.end)) for event in of_device]
    copies = [span for name, span in spans if "HtoD" in name]
    return copies, sorted(span for name, span in spans if "Memcpy" not in name and "Memset" not in name)


def _overlap(span: Span, others: list[Span]) -> float:
    """How much of a span the union of sorted others covers."""
    covered, reached = 0.0, span[0]
    for begin, end in others:
        last = min(end, span[1])
        if last > max(begin, reached):
            covered += last - max(begin, reached)
            reached = last
    return covered


def normalising_on_the_device_equals_the_cpu(suite: Suite) -> Values:
    """To one unit of an 8-bit pixel."""
    from scalestudy.data.load.normalise import normalise

    x = torch.randint(0, 256, (16, 3, 96, 96), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    on_cpu = normalise(x, torch.float32, "cpu").clone()
    here = normalise(x.to(suite.device), torch.float32, suite.device).cpu()
    difference = float((on_cpu - here).abs().max())
    assert difference <= 1 / 255, f"values differ by up to {difference:g}"
    return {"largest_difference": difference}


GROUPS = (
    Group("checks", "clocks", (
        step_times_add_up_to_wall_time,
        step_times_agree_with_the_profiler,
        measuring_costs_at_most_one_percent,
    ), 90),
    Group("checks", "loader", (
        batches_lie_in_pinned_memory,
        no_batch_is_overwritten_while_it_is_copied,
        copies_are_hidden_behind_compute,
        normalising_on_the_device_equals_the_cpu,
    ), 90),
    Group("checks", "weights", (
        two_runs_have_the_same_weights_bit_for_bit,
        a_run_that_was_stopped_ends_with_the_same_weights,
        float64_agrees_with_the_cpu,
        mixed_precision_learns_as_well,
        channels_last_and_compile_learn_alike,
    ), 260),
)  # fmt: skip
