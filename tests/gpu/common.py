"""Device, sizes, runs and ratios of the GPU tests."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.ratios import Estimate, ratio_of

ROOT = Path(__file__).resolve().parents[2]
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
HAS_GPU = DEVICE.type == "cuda"
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
rehearsed_in_soak = pytest.mark.gpu if HAS_GPU else pytest.mark.soak
"""Takes many runs, of which a CPU shows no more than that they can be made."""
Values = dict[str, Any]
Record = Callable[..., None]
TURNS = 7
LIMIT_S = 240.0
CALL = "import sys; from scalestudy.cli import main; sys.argv[0] = 'scalestudy'; sys.exit(main())"
DETERMINISTIC = "import torch; torch.use_deterministic_algorithms(True); torch.backends.cudnn.benchmark = False; "


def size(gpu: int, cpu: int) -> int:
    """A number of steps, samples or pixels: on a CPU only the code is tried."""
    return gpu if HAS_GPU else cpu


def synchronise() -> None:
    if HAS_GPU:
        torch.cuda.synchronize(DEVICE)


def seconds_of(work: Callable[[], Any], times: int = 1) -> float:
    """Seconds per call, with the device's queue empty before and after."""
    synchronise()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    synchronise()
    return (time.perf_counter() - begin) / times


def median_s(work: Callable[[], Any]) -> float:
    """Median seconds per call over five regions of 20 calls."""
    work()
    return statistics.median(seconds_of(work, size(20, 1)) for _ in range(5))


def paired(one: Callable[[], float], other: Callable[[], float]) -> Estimate:
    """Ratio of the seconds of `one` to those of `other`, in turns that change their order; the first turn warms up."""
    ratios = []
    for turn in range(1 + size(TURNS, 1)):
        if turn % 2:
            first, second = one(), other()
        else:
            second, first = other(), one()
        ratios.append(first / second)
    return ratio_of(ratios[1:])


def as_values(name: str, found: Estimate) -> Values:
    """A ratio with its 95 % interval."""
    return {name: found.value, f"{name}_interval": [found.low, found.high] if HAS_GPU else None}


def matrices(side: int) -> Callable[[], torch.Tensor]:
    """A product of two matrices, which keeps a device busy."""
    x = torch.randn(side, side, device=DEVICE)
    return lambda: x @ x


def synthetic(samples: int, side: int, **more: int) -> str:
    """Setting of data that costs nothing to make."""
    return "data=" + json.dumps({"source": "synthetic", "samples": samples, "shape": [3, side, side], **more})


def environment(**more: str) -> dict[str, str]:
    """This clone's packages first."""
    path = os.pathsep.join([str(ROOT / "workflow"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **more}


def start(*words: str, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """`scalestudy WORDS` as a process of its own; on a GPU `before` is Python that runs first in the run's processes."""
    more = {"SCALESTUDY_WARM": "0"} if HAS_GPU else {}
    code = before * HAS_GPU + CALL
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **{"cwd": ROOT, **options},
    )  # fmt: skip


def output_of(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=LIMIT_S)[0]
    finally:
        process.kill()


def tried(out: Path, *settings: str, **options: Any) -> dict[str, Any]:
    """Result of `scalestudy try` on the device."""
    device = [] if any(word.startswith("device=") for word in settings) else [f"device={DEVICE.type}"]
    process = start("try", *device, *settings, "--out", str(out), **options)
    output = output_of(process)
    assert process.returncode in (0, 1) and (out / "result.json").exists(), output[-1500:]
    return json.loads((out / "result.json").read_text())


def valid(result: dict[str, Any], is_timed: bool = False) -> dict[str, Any]:
    """Metrics of a valid run; without `is_timed`, and on a CPU, its window may be too short."""
    is_short = str(result["reason"]).startswith("the measured window is ") and not (is_timed and HAS_GPU)
    assert result["status"] == "valid" or is_short, f"{result['status']}: {result['reason']}"
    return result["metrics"]


def images(folder: Path, samples: int, side: int = 256) -> Path:
    """Manifest of a prepared dataset of made JPEGs."""
    from pydantic import TypeAdapter

    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.spec.config import Site
    from scalestudy.spec.run import Data

    plain = {"source": "synthetic_jpeg", "samples": samples, "width": side + 64, "height": side, "mean_kib": 24}
    manifest = folder / f"images-{samples}-{side}" / "manifest.json"
    if not manifest.exists():
        prepare(TypeAdapter(Data).validate_python(plain), manifest, None, Site())
    return manifest


def loader_of(manifest: Path, batch: int, **options: Any) -> Any:
    """A loader of all samples in their order, with crops and flips."""
    import numpy as np

    from scalestudy.data.load.dataset import open_dataset
    from scalestudy.data.load.loader import Loader
    from scalestudy.spec.run import Loader as LoaderSpec

    spec = LoaderSpec.model_validate({"workers": size(8, 1), "augment": "crop_flip", **options})
    dataset = open_dataset(manifest, "train", spec)
    order = np.arange(dataset.samples)
    return Loader(dataset, [(0, order[i : i + batch]) for i in range(0, len(order) - batch + 1, batch)], spec, seed=1)
