"""scalestudy: a reproducible evaluation of distributed deep-learning training.

`from scalestudy import report` is for training scripts: this file imports the standard library alone.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import TextIO

__version__ = "0.1.0"
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
PROGRAM_FOLDER = "SCALESTUDY_PROGRAM"
"""Environment variable with the folder of a program's metrics."""


def report(
    step: int,
    samples: float | None = None,
    loss: float | None = None,
    bytes: float | None = None,
    flops: float | None = None,
) -> None:
    """Report that a step has ended; without effect outside a run.

    `samples`, `bytes` and `flops` (floating-point operations) are those since the last report of this process; what several
    ranks report is added up. On a GPU, call it where the step's work has ended, or its time is that of queueing.
    """
    folder = os.environ.get(PROGRAM_FOLDER)
    if folder is None:
        return
    line: dict[str, float] = {"clock": time.perf_counter(), "step": int(step)}
    values = {"samples": samples, "loss": loss, "bytes": bytes, "flops": flops}
    line |= {name: float(value) for name, value in values.items() if value is not None}
    file = _file(folder, os.getpid())
    file.write(json.dumps(line) + "\n")
    file.flush()


@functools.cache
def _file(folder: str, process: int) -> TextIO:
    rank = next((os.environ[name] for name in RANK_VARIABLES if os.environ.get(name)), "0")
    return (Path(folder) / f"reported.{rank}.{process}.jsonl").open("w", encoding="utf-8")
