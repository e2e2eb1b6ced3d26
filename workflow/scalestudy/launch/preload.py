"""Modules of every rank, imported by the process that forks them: once, not once per rank."""

from __future__ import annotations

import gc
import importlib
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from scalestudy.errors import UserError

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
OF_RUNS = (
    "scalestudy.launch.launch",
    "scalestudy.data.prepare.datasets",
    "pyarrow.parquet",
    "pandas",
)
"""What the process that makes a run imports besides, the last ones to write its tables."""


def preload(*more: str) -> None:
    """Import MODULES, and more. Raises UserError where memory for one cannot be had under a limit of this process."""
    with _no_collection():
        for module in (*MODULES, *more):
            try:
                importlib.import_module(module)
            except (ImportError, OSError, MemoryError) as error:
                limit, _ = resource.getrlimit(resource.RLIMIT_AS)
                if limit == resource.RLIM_INFINITY:
                    raise
                said = str(error).partition("\n")[0] or type(error).__name__
                what = f"cannot be loaded with {limit / 2**20:,.0f} MiB of address space: {said}"
                raise UserError(what, module, "raise the limit of this shell: ulimit -v unlimited") from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile, and objects that remain at the end never are.

    Importing makes objects that stay; to look at them all again and again takes a quarter of its time, and afterwards
    would copy them, page by page, in every process that was forked.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
