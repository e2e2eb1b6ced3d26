"""Modules of every rank, imported by the process that forks them: once, not once per rank."""

from __future__ import annotations

import gc
import importlib

MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.export",
    "torch.nn.parallel",
    "scalestudy.training.trainer",
    "scalestudy.results.result",
)
"""None of them starts threads that a fork would miss, or touches a GPU: a process may fork ranks afterwards."""
RUN_MODULES = ("scalestudy.launch.launch", "pyarrow.parquet", "pandas")
"""Imports of a run's supervisor besides."""


def preload(*more: str) -> None:
    """Import MODULES and more, without garbage collection, whose passes take a quarter of that time.

    Objects that remain are never collected: that would copy them, page by page, in every forked process.
    """
    gc.disable()
    try:
        for module in (*MODULES, *more):
            importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
