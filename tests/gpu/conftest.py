"""Figures of GPU tests go to a file, a line per test; the time of a call may be limited."""

from __future__ import annotations

import gc
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.common import DEVICE, HAS_GPU, ROOT, Record, Values

FIGURES = Path(os.environ.get("SCALESTUDY_GPU_OUT", ROOT / "build")) / "gpu.jsonl"
MINUTES = float(os.environ.get("SCALESTUDY_GPU_MINUTES", "inf"))
"""No test begins later than this after the first one."""
BEGIN = time.monotonic()


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    """Each test begins with free device memory, and leaves threads and precisions as they were."""
    if time.monotonic() - BEGIN > 60 * MINUTES:
        pytest.skip("no time left")
    threads, tf32 = torch.get_num_threads(), (torch.backends.cuda.matmul, torch.backends.cudnn)
    allowed = [backend.allow_tf32 for backend in tf32]
    if not HAS_GPU:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for backend, is_allowed in zip(tf32, allowed, strict=True):
        backend.allow_tf32 = is_allowed
    if HAS_GPU:
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Iterator[Record]:
    """`record(**values)` notes figures of this test; they are written also where it fails afterwards."""
    values: Values = {}
    yield values.update
    name = torch.cuda.get_device_name(DEVICE) if HAS_GPU else platform.processor() or "cpu"
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    line = {"test": request.node.name, "device": name, **versions, "date": time.strftime("%Y-%m-%d"), **values}
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    with FIGURES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, default=str) + "\n")
    print(line)
