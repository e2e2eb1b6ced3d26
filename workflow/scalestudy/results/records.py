"""What servers recorded of each of their updates, gathered for the result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from scalestudy.training.job import Job


def events(job: Job) -> dict[int, dict[str, np.ndarray]]:
    """By server, from 0: the columns `time_s`, `worker`, `staleness` of its updates; empty where nobody recorded any."""
    first = job.spec.ranks
    files = {server: job.folder / f"events.{first + server}.npz" for server in range(job.spec.strategy.servers_beside)}
    return {server: dict(np.load(file)) for server, file in files.items() if file.exists()}


def staleness(job: Job) -> dict[str, int] | None:
    """How many updates had each staleness, over all servers; None where it was not recorded."""
    found = [value for columns in events(job).values() for value in columns["staleness"].astype(int).tolist()]
    return {str(value): count for value, count in sorted(Counter(found).items())} if found else None


def mean_staleness(job: Job) -> float | None:
    """Mean over all updates of all servers; None where it was not recorded."""
    histogram = staleness(job)
    if histogram is None:
        return None
    return sum(int(value) * count for value, count in histogram.items()) / sum(histogram.values())


def write_events(job: Job, file: Path) -> None:
    """One row per update: server, seconds since it began to serve, worker, staleness. No file where there are none."""
    found = events(job)
    if not found:
        return
    import pandas as pd

    from scalestudy.files import write_with

    frames = [pd.DataFrame({"server": server, **columns}) for server, columns in found.items()]
    frame = pd.concat(frames, ignore_index=True).astype({"worker": "int32", "staleness": "int32"})
    write_with(file, frame.to_parquet)
