"""What every rank imports, imported by the process that forks them: once, not once per rank."""

from __future__ import annotations

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
"""None of them starts threads or touches a GPU: a process may fork ranks afterwards."""


def preload() -> None:
    """Import MODULES."""
    for module in MODULES:
        importlib.import_module(module)
