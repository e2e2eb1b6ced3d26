"""Ratios on a GPU beside plain torch and torchvision, and what the device reaches. Peers run in the same call, in turns."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.gpu.checks import _pictures
from tests.gpu.suite import NotHere, Suite, Values, paired, seconds_of, synchronise
from tests.gpu.tries import tried, valid

PEAK_TFLOPS = {
    # NVIDIA H100 Tensor Core GPU, data sheet, 2023, SXM5: dense values, half of those with sparsity.
    "NVIDIA H100": {"float32": 66.9, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4, "float64": 66.9},
    "NVIDIA H200": {"float32": 66.9, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4, "float64": 66.9},
}


def peak_tflops(suite: Suite, precision: str) -> float | None:
    """The data sheet's dense peak of this GPU; None where it is not in the table."""
    if suite.dry:
        return None
    name = torch.cuda.get_device_name(suite.device)
    return next((peaks[precision] for prefix, peaks in PEAK_TFLOPS.items() if name.startswith(prefix)), None)


# What the device reaches


def matrix_products_per_precision(suite: Suite) -> Values:
    """TFLOP/s of a product of two 8192 x 8192 matrices of random numbers, median of 20, and its share of the data sheet's."""
    side, found = suite.size(8192, 256), {}
    for precision, dtype in (("float64", torch.float64), ("float32", torch.float32), ("tf32", torch.float32),
                             ("bfloat16", torch.bfloat16), ("float16", torch.float16)):  # fmt: skip
        if suite.dry and precision in ("tf32", "float16"):
            continue
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        x, y = (torch.randn(side, side, device=suite.device).to(dtype) for _ in range(2))
        for _ in range(3):
            x @ y
        seconds = statistics.median(seconds_of(suite.device, lambda x=x, y=y: x @ y) for _ in range(suite.size(20, 3)))
        found[f"{precision}_tflops"] = 2 * side**3 / seconds / 1e12
        if peak := peak_tflops(suite, precision):
            found[f"{precision}_of_data_sheet"] = found[f"{precision}_tflops"] / peak
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def copy_bandwidths(suite: Suite) -> Values:
    """GB/s (10^9) from host to device, pinned and pageable, and on the device (bytes read plus written), median of 20."""
    size, found = suite.size(256 << 20, 1 << 20), {}
    there = torch.empty(size, dtype=torch.uint8, device=suite.device)
    other = torch.empty_like(there)
    sources = {"pageable": torch.empty(size, dtype=torch.uint8)}
    if not suite.dry:
        sources["pinned"] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    for name, source in sources.items():
        times = [
            seconds_of(suite.device, lambda source=source: there.copy_(source, non_blocking=True)) for _ in range(21)
        ]
        found[f"host_to_device_{name}_gb_per_s"] = size / statistics.median(times[1:]) / 1e9
    times = [seconds_of(suite.device, lambda: other.copy_(there)) for _ in range(21)]
    found["device_to_device_gb_per_s"] = 2 * size / statistics.median(times[1:]) / 1e9
    return found


# The loop beside a bare one


def _bare_step_s(
    suite: Suite, batch: int, autocast: torch.dtype | None, tf32: bool, channels_last: bool, steps: int
) -> float:
    """Seconds per step of ResNet-50 in the plainest loop of torch, on one batch that stays on the device."""
    from torchvision.models import resnet50

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.manual_seed(0)
    model = (resnet50() if not suite.dry else nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                                           nn.Linear(8, 1000))).to(suite.device)  # fmt: skip
    side = suite.size(224, 8)
    x = torch.randn(batch, 3, side, side, device=suite.device)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device=suite.device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(suite.device.type, autocast) if autocast else contextlib.nullcontext():
            loss = criterion(model(x), y)
        loss.backward()
        optimiser.step()

    for _ in range(suite.size(10, 1)):
        step()
    return seconds_of(suite.device, lambda: [step() for _ in range(steps)]) / steps


def _own_step_s(suite: Suite, name: str, batch: int, settings: tuple[str, ...], steps: int) -> float:
    side = suite.size(224, 8)
    data = f"data={{source: synthetic, samples: {4 * batch}, shape: [3, {side}, {side}], classes: 1000}}"
    model = "model=resnet50" if not suite.dry else "model=small_cnn"
    metrics = valid(
        tried(suite, name, model, data, f"batch.per_rank={batch}", "measure.warmup_steps=10", f"measure.steps={steps}",
              "train.epochs=1000", "train.evaluate_every_epochs=0", "loader.mode=synthetic", "optimiser.learning_rate=0.01",
              *settings)
    )  # fmt: skip
    return batch / float(metrics["throughput_samples_per_s"])


def the_loop_beside_a_bare_loop(suite: Suite) -> Values:
    """ResNet-50, ours over the bare loop, three turns each: at most 1.02."""
    cases: dict[str, tuple[int, torch.dtype | None, bool, bool, tuple[str, ...]]] = {
        "float32_64": (64, None, False, False, ()),
        "bfloat16_channels_last_256": (256, torch.bfloat16, False, True,
                                       ("autocast=bfloat16", "memory_format=channels_last")),
    }  # fmt: skip
    found: Values = {}
    for name, (full_batch, autocast, tf32, last, settings) in list(cases.items())[: suite.size(2, 1)]:
        batch, steps = suite.size(full_batch, 8), suite.size(60, 20)
        ratios = []
        for turn in range(suite.size(3, 1)):
            own = _own_step_s(suite, f"loop-{name}-{turn}", batch, settings, steps)
            bare = _bare_step_s(suite, batch, autocast, tf32, last, steps)
            ratios.append(own / bare)
        found[name] = statistics.median(ratios)
        found[f"{name}_all"] = " ".join(f"{ratio:.4f}" for ratio in ratios)
    worst = max(value for value in found.values() if isinstance(value, float))
    assert suite.dry or worst <= 1.02, f"{found}"
    return found


# The loader beside others


def _rate(suite: Suite, batches: Iterator[Any], batch: int, count: int) -> float:
    """Images per second that reach the device, after the first tenth."""
    warm = max(1, count // 10)
    for _ in range(warm):
        next(batches)
    synchronise(suite.device)
    begin, seen = time.perf_counter(), 0
    for x, _ in batches:
        seen += len(x)
        if seen >= count * batch:
            break
    synchronise(suite.device)
    return seen / (time.perf_counter() - begin)


def the_loader_beside_torchvision(suite: Suite) -> Values:
    """Images/s to the device: random crop and flip at 224, as many workers as cores; torchvision's DataLoader by processes."""
    from torch.utils.data import DataLoader, Dataset
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    from scalestudy.data.load.dataset import open_dataset
    from scalestudy.data.load.loader import Loader, on_device
    from scalestudy.spec.run import Loader as LoaderSpec

    cores, batch = len(os.sched_getaffinity(0)), suite.size(64, 8)
    manifest = _pictures(suite, suite.size(6400, 160), suite.size(375, 96))
    files = open_dataset(manifest, "train").files
    turn_pictures = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])

    class Files(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, number: int) -> Any:
            return turn_pictures(decode_jpeg(read_file(str(files[number])), ImageReadMode.RGB)), 0

    def ours() -> float:
        import numpy as np

        spec = LoaderSpec(workers=cores, augment="crop_flip", size=224)
        dataset = open_dataset(manifest, "train", spec)
        order = np.random.default_rng(0).permutation(dataset.samples)
        plan = [(0, order[i : i + batch]) for i in range(0, len(order) - batch + 1, batch)]
        with contextlib.closing(Loader(dataset, plan, spec, 0)) as loader:
            return 1 / _rate(suite, iter(on_device(loader, suite.device)), batch, int(0.8 * len(plan)))

    def theirs() -> float:
        loader = DataLoader(Files(), batch, shuffle=True, num_workers=cores, pin_memory=not suite.dry, drop_last=True)
        copied = ((x.to(suite.device, non_blocking=True), y) for x, y in loader)
        return 1 / _rate(suite, iter(copied), batch, int(0.8 * len(loader)))

    ratio, low, high = paired(suite, theirs, ours, turns=3)
    return {"ours_over_torchvision": ratio, "low": low, "high": high, "ours_images_per_s": 1 / ours(), "cores": cores}


def decoding_on_the_device(suite: Suite) -> Values:
    """Images/s of nvJPEG through torchvision, batches of 64, beside one core of the loader's decoder."""
    suite.need_gpu("nvJPEG")
    from torchvision.io import decode_jpeg, read_file

    from scalestudy.data.decode import images
    from scalestudy.data.load.dataset import open_dataset

    files = open_dataset(_pictures(suite, 640, 375), "train").files[:640]
    coded = [read_file(str(file)) for file in files]
    try:
        decode_jpeg(coded[:2], device=suite.device)
    except RuntimeError as error:
        raise NotHere(f"torchvision without nvJPEG: {str(error).splitlines()[0]}") from None
    times = []
    for _ in range(5):

        def decoded() -> None:
            for begin in range(0, len(coded), 64):
                decode_jpeg(coded[begin : begin + 64], device=suite.device)

        times.append(seconds_of(suite.device, decoded))
    plain = [file.read_bytes() for file in files[:128]]
    begin = time.perf_counter()
    for data in plain:
        images.decode(data)
    one_core = len(plain) / (time.perf_counter() - begin)
    nvjpeg = len(coded) / statistics.median(times)
    return {"nvjpeg_images_per_s": nvjpeg, "one_core_images_per_s": one_core, "cores_that_equal_it": nvjpeg / one_core}


# Model FLOPs utilisation


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 12)


def model_flops_utilisation(suite: Suite) -> Values:
    """Counted operations of forward and backward (torch's FLOP counter) per second over the data sheet's dense peak."""
    from torch.utils.flop_counter import FlopCounterMode
    from torchvision.models import resnet50, vit_b_16

    models: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "resnet50": (resnet50, (256, 3, 224, 224)),
        "vit_b_16": (vit_b_16, (256, 3, 224, 224)),
        "transformer": (_encoder, (16, 1024, 1024)),
    }
    if suite.dry:
        models = {"linear": (lambda: nn.Linear(64, 64), (8, 64))}
    found: Values = {}
    for name, (make, shape) in models.items():
        for precision in ("bfloat16", "tf32") if not suite.dry else ("float32",):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
            model, x = make().to(suite.device), torch.randn(shape, device=suite.device)
            if x.ndim == 4:
                model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
            optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

            def step(
                model: nn.Module = model, x: torch.Tensor = x, optimiser: Any = optimiser, p: str = precision
            ) -> None:
                optimiser.zero_grad(set_to_none=True)
                with torch.autocast(suite.device.type, torch.bfloat16, enabled=p == "bfloat16"):
                    loss = model(x).float().square().mean()
                loss.backward()
                optimiser.step()

            with FlopCounterMode(display=False) as counter:
                step()
            for _ in range(5):
                step()
            steps = suite.size(20, 3)
            seconds = seconds_of(suite.device, lambda step=step, steps=steps: [step() for _ in range(steps)]) / steps
            key = f"{name}_{precision}"
            found[f"{key}_tflops"] = counter.get_total_flops() / seconds / 1e12
            found[f"{key}_samples_per_s"] = shape[0] / seconds
            if peak := peak_tflops(suite, precision):
                found[f"{key}_mfu"] = found[f"{key}_tflops"] / peak
            del model, x, optimiser
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


ALL = (
    matrix_products_per_precision,
    copy_bandwidths,
    the_loop_beside_a_bare_loop,
    the_loader_beside_torchvision,
    decoding_on_the_device,
    model_flops_utilisation,
)
