"""Memory of a loader and the time to its first batch, as JSON: loader_memory.py threads|processes WORKERS FOLDER."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch  # noqa: F401

from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.load.loader import Loader
from scalestudy.data.load.sampler import batches
from scalestudy.spec import run


def anonymous_mib() -> float:
    """Anonymous memory, and shared memory in use, of this process and all below it, MiB."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1])
    return total / 1024


def main() -> None:
    """Load 60 batches and look five times."""
    kind, workers, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch_mib = anonymous_mib()
    spec = run.Loader.model_validate({"kind": kind, "workers": workers, "augment": "crop_flip", "size": 224})
    begin = time.perf_counter()
    data = open_dataset(folder / "manifest.json", "train", spec)

    def plan() -> Iterator[tuple[int, Any]]:
        for indices in batches(data.samples, 64, 0, 1, 0, 0):
            yield 0, indices

    with Loader(data, plan(), spec, seed=0) as loader:
        stream = iter(loader)
        next(stream)
        first_batch_s = time.perf_counter() - begin
        looks = []
        for number in range(50):
            next(stream)
            if number % 10 == 9:
                looks.append(anonymous_mib())
    print(json.dumps({"torch_mib": torch_mib, "total_mib": statistics.mean(looks), "first_batch_s": first_batch_s}))


if __name__ == "__main__":
    main()
