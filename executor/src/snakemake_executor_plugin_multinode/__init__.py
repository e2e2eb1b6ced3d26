"""Snakemake jobs on PBS, Grid Engine and Slurm: multi-node, adopted after a restart, continued after a walltime."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snakemake_executor_plugin_multinode.executor import Executor, ExecutorSettings, common_settings

__version__ = "0.1.0"
__all__ = ["Executor", "ExecutorSettings", "common_settings"]


def __getattr__(name: str) -> Any:
    """Import the executor on first use: who only reads a site needs no Snakemake."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.executor"), name)
