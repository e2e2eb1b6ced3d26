"""What every rank imports, imported by the process that forks them: once, not once per rank."""

from __future__ import annotations

import importlib
import resource

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
"""None of them starts threads or touches a GPU: a process may fork ranks afterwards."""


def preload() -> None:
    """Import MODULES. Raises UserError where memory for one of them cannot be had under a limit of this process."""
    for module in MODULES:
        try:
            importlib.import_module(module)
        except (ImportError, OSError, MemoryError) as error:
            limit, _ = resource.getrlimit(resource.RLIMIT_AS)
            if limit == resource.RLIM_INFINITY:
                raise
            said = str(error).partition("\n")[0] or type(error).__name__
            what = f"cannot be loaded with {limit / 2**20:,.0f} MiB of address space: {said}"
            raise UserError(what, module, "raise the limit of this shell: ulimit -v unlimited") from error
