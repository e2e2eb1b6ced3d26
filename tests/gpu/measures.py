"""Ratios on a GPU beside plain torch and torchvision, and what the device reaches. Peers run in the same call, in turns."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.gpu.checks import _pictures
from tests.gpu.groups import Group
from tests.gpu.loops import CASES, Case, compared, pageable_over_pinned
from tests.gpu.suite import NotHere, Suite, Values, as_text, estimate, paired, seconds_of, synchronise, tf32
from tests.gpu.tries import ROOT, tried, valid

SHEETS = ROOT / "config" / "reference" / "accelerators.csv"
PUBLISHED = {
    # No published number of a vision model on one H100 was found that names its software and batch.
    "transformer_bfloat16": "39.8 % (MPT 760M, sequences of 1024, 8 x H100 80GB, bfloat16: mosaicml/llm-foundry, "
    "scripts/train/benchmarking/README.md at 061f2c7ce64e655100286584a7629e2a09f827ba)",
}
"""MFU that others have published, by model and precision."""


def peak_tflops(name: str, precision: str, file: Path = SHEETS) -> float | None:
    """The data sheet's dense peak of the GPU that its driver calls so; None where it is not in the table."""
    from scalestudy.files import read_table

    rows = read_table(file, ("device_name", precision), numbers=(precision,))
    return next((float(row[precision]) for row in rows if row["device_name"] == name and row[precision]), None)


def _of_sheet(suite: Suite, precision: str) -> float | None:
    return None if suite.dry else peak_tflops(torch.cuda.get_device_name(suite.device), precision)


# What the device reaches

LAUNCHES = 20


def _median_s(suite: Suite, work: Callable[[], Any]) -> float:
    """Seconds of one launch: of five regions of twenty, the median; the device's queue is empty before and after each."""
    seconds_of(suite.device, work)
    launches = suite.size(LAUNCHES, 1)
    regions = [seconds_of(suite.device, lambda: [work() for _ in range(launches)]) for _ in range(5)]
    return statistics.median(regions) / launches


def matrix_products_per_precision(suite: Suite) -> Values:
    """TFLOP/s of a product of two 8192 x 8192 matrices of random numbers, and its share of the data sheet's peak.

    The sheet's float64 is that without tensor cores, which cuBLAS uses for it: more than the whole can be reached.
    """
    side, found = suite.size(8192, 256), Values()
    for precision, dtype in (("float64", torch.float64), ("float32", torch.float32), ("tf32", torch.float32),
                             ("bfloat16", torch.bfloat16), ("float16", torch.float16)):  # fmt: skip
        if suite.dry and precision in ("tf32", "float16"):
            continue
        with tf32(precision == "tf32"):
            x, y = (torch.randn(side, side, device=suite.device).to(dtype) for _ in range(2))
            found[f"{precision}_tflops"] = 2 * side**3 / _median_s(suite, lambda x=x, y=y: x @ y) / 1e12
        if peak := _of_sheet(suite, precision):
            found[f"{precision}_of_data_sheet"] = found[f"{precision}_tflops"] / peak
    return found


def copy_bandwidths(suite: Suite) -> Values:
    """GB/s (10^9) from host to device, pinned and pageable, and on the device (bytes read plus written)."""
    size, found = suite.size(256 << 20, 1 << 20), Values()
    there = torch.empty(size, dtype=torch.uint8, device=suite.device)
    other = torch.empty_like(there)
    sources = {"pageable": torch.empty(size, dtype=torch.uint8)}
    if not suite.dry:
        sources["pinned"] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    for name, source in sources.items():
        seconds = _median_s(suite, lambda source=source: there.copy_(source, non_blocking=True))
        found[f"host_to_device_{name}_gb_per_s"] = size / seconds / 1e9
    found["device_to_device_gb_per_s"] = 2 * size / _median_s(suite, lambda: other.copy_(there)) / 1e9
    return found


# The loop beside a bare one

MOST = 1.02
A_CASE_S = 60.0
"""A case is not begun with less time left."""


def the_loop_beside_a_bare_loop(suite: Suite) -> Values:
    """ResNet-50: a step of ours over one of a bare loop, in one process, in seven turns and more; at most 1.02."""
    found, missed, model, side = Values(), [], "small_cnn" if suite.dry else "resnet50", suite.size(224, 8)
    for case in (Case("float32_8", 8, {}),) if suite.dry else CASES:
        if not suite.dry and suite.left_s < A_CASE_S:
            found[case.name] = "no time left"
            continue
        ratio, rate = compared(suite, case, suite.size(20, 10), model, side)
        found |= {**estimate(case.name, ratio), f"{case.name}_samples_per_s": rate}
        missed += [case.name] if ratio.at_most(MOST) == "MISSED" else []
        if not suite.dry:
            torch.cuda.empty_cache()
    assert suite.dry or not missed, f"more than {MOST}: {', '.join(missed)}; {as_text(found)}"
    return found


def pageable_memory_beside_pinned(suite: Suite) -> Values:
    """ResNet-50 in bfloat16, batches of 64: a step with pageable batches over one with pinned ones, copied ahead."""
    model, side = ("small_cnn", 8) if suite.dry else ("resnet50", 224)
    return estimate(
        "pageable_over_pinned", pageable_over_pinned(suite, suite.size(64, 8), suite.size(20, 10), model, side)
    )


# The loader beside others

PICTURES = 4096


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
    """Images/s to the device: random crop and flip at 224, as many workers as cores; torchvision's DataLoader by processes.

    Both are made anew in each turn; what they take to start is not counted.
    """
    from torch.utils.data import DataLoader, Dataset
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    from scalestudy.data.load.dataset import open_dataset
    from scalestudy.data.load.loader import Loader, on_device
    from scalestudy.spec.run import Loader as LoaderSpec

    synchronise(suite.device)  # CUDA is started: a loader made before would lock no page
    cores, batch = len(os.sched_getaffinity(0)), suite.size(64, 8)
    manifest = _pictures(suite, suite.size(PICTURES, 160), suite.size(375, 96))
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

    return {
        **estimate("ours_over_torchvision", paired(suite, theirs, ours)),
        "ours_images_per_s": 1 / ours(),
        "cores": cores,
    }


def cores_that_this_gpu_needs(suite: Suite) -> Values:
    """Images/s of the loader by number of workers, beside what ResNet-50 in bfloat16 trains from memory and from pictures.

    From both, how many workers this GPU needs, as if each loaded as much as the last that were tried.
    """
    cores, side = len(os.sched_getaffinity(0)), suite.size(375, 32)
    workers = sorted({1, max(1, cores // 2), cores})
    pictures = f"data={{source: synthetic_jpeg, samples: {suite.size(2048, 64)}, width: {side + 125}, height: {side}, mean_kib: {suite.size(100, 8)}}}"
    crop = suite.size(224, 32)
    made = f"data={{source: synthetic, samples: {suite.size(1 << 20, 64)}, shape: [3, {crop}, {crop}], classes: 1000}}"
    fast = () if suite.dry else ("autocast=bfloat16", "memory_format=channels_last")
    window = ("measure.steps=6", "measure.warmup_steps=1") if suite.dry else ("measure.minutes=0.085",)
    common = ("model=small_cnn" if suite.dry else "model=resnet50", f"batch.per_rank={suite.size(64, 8)}", *fast, *window,
              "train.epochs=1000", "train.evaluate_every_epochs=0", "optimiser.learning_rate=0.01")  # fmt: skip
    from_memory = valid(
        tried(suite, "fed-from-memory", *common, made, "loader.mode=synthetic"), measured=True
    )  # fmt: skip
    found: Values = {"from_memory_images_per_s": from_memory["throughput_samples_per_s"],
                     "from_memory_utilisation": from_memory["device_utilisation"]}  # fmt: skip
    for count in workers[: suite.size(len(workers), 1)]:
        loader = (
            f"loader={{workers: {count}, augment: crop_flip, cache: warm, size: {crop}}}",
            f"measure.loader_batches={suite.size(8 * count, 2)}",
        )
        metrics = valid(tried(suite, f"fed-by-{count}", *common, pictures, *loader), measured=True)
        found[f"{count}_workers_load_images_per_s"] = metrics["loader_samples_per_s"]
        found[f"{count}_workers_train_images_per_s"] = metrics["throughput_samples_per_s"]
        found[f"{count}_workers_utilisation"] = metrics["device_utilisation"]
        per_worker = metrics["loader_samples_per_s"] / count
    found["workers_needed"] = from_memory["throughput_samples_per_s"] / per_worker
    return found


def an_emulated_device_is_as_fast_as_the_real_one(suite: Suite) -> Values:
    """`emulated:` with the rate measured here, beside real runs, with three loaders: throughputs within 5 %."""
    suite.need_gpu("a real run to set beside")
    project = suite.folder("emulated")
    table = project / "config" / "reference" / "step_times.csv"
    table.parent.mkdir(parents=True)
    common = ("model=resnet50", "batch.per_rank=64", "measure.minutes=0.085", "train.epochs=1000",
              "train.evaluate_every_epochs=0", "optimiser.learning_rate=0.01")  # fmt: skip
    real = ("device=cuda", "autocast=bfloat16", "memory_format=channels_last")
    made = "data={source: synthetic, samples: 1048576, shape: [3, 224, 224], classes: 1000}"
    table.write_text("model,accelerator,batch,images_per_s,source\n", encoding="utf-8")
    alone = valid(tried(suite, "real-alone", *common, *real, made, "loader.mode=synthetic", cwd=project), measured=True)
    rate = alone["throughput_samples_per_s"]
    with open(table, "a", encoding="utf-8") as stream:
        stream.write(f"resnet50,this_gpu,64,{rate:.2f},measured here\n")
    found: Values = {"from_memory_images_per_s": rate}
    pictures = "data={source: synthetic_jpeg, samples: 2048, width: 500, height: 375, mean_kib: 100}"
    for workers in sorted({1, 4, len(os.sched_getaffinity(0))}):
        loader = f"loader={{workers: {workers}, augment: crop_flip, cache: warm}}"
        rates = [
            valid(tried(suite, f"{kind}-{workers}", *common, *settings, pictures, loader, cwd=project), measured=True)[
                "throughput_samples_per_s"
            ]
            for kind, settings in (("real", real), ("emulated", ("device=emulated:this_gpu",)))
        ]
        found[f"{workers}_workers_emulated_over_real"] = rates[1] / rates[0]
    apart = {name: value for name, value in found.items() if name.endswith("_real") and abs(value - 1) > 0.05}
    assert not apart, f"more than 5 % apart: {as_text(found)}"
    return found


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
    """Counted operations of forward and backward (torch's FLOP counter) per second over the data sheet's dense peak.

    Beside each is what others have published for it, with the source.
    """
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
            with tf32(precision == "tf32"):
                flops, seconds = _training_step(suite, make, shape, precision == "bfloat16")
            key = f"{name}_{precision}"
            found |= {f"{key}_tflops": flops / seconds / 1e12, f"{key}_samples_per_s": shape[0] / seconds}
            if peak := _of_sheet(suite, precision):
                found[f"{key}_mfu"] = found[f"{key}_tflops"] / peak
                found[f"{key}_published"] = PUBLISHED.get(key, "none found")
            if not suite.dry:
                torch.cuda.empty_cache()
    return found


def _training_step(
    suite: Suite, make: Callable[[], nn.Module], shape: tuple[int, ...], bfloat16: bool
) -> tuple[int, float]:
    """Operations of a step, and its seconds."""
    from torch.utils.flop_counter import FlopCounterMode

    model, x = make().to(suite.device), torch.randn(shape, device=suite.device)
    if x.ndim == 4:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(suite.device.type, torch.bfloat16, enabled=bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimiser.step()

    with FlopCounterMode(display=False) as counter:
        step()
    for _ in range(suite.size(5, 1)):
        step()
    steps = suite.size(20, 3)
    seconds = seconds_of(suite.device, lambda: [step() for _ in range(steps)]) / steps
    return counter.get_total_flops(), seconds


GROUPS = (
    Group("measures", "peaks", (matrix_products_per_precision, copy_bandwidths), 60),
    Group("measures", "loop", (pageable_memory_beside_pinned, the_loop_beside_a_bare_loop), 240),
    Group("measures", "mfu", (model_flops_utilisation,), 90),
    Group("measures", "loader", (the_loader_beside_torchvision, decoding_on_the_device), 120),
    Group("measures", "feeding", (cores_that_this_gpu_needs, an_emulated_device_is_as_fast_as_the_real_one), 150),
)
