"""What a strategy needs in addition to torch, and whether it is here. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
import shutil

from scalestudy.strategies import horovod_build
from scalestudy.strategies.catalogue import AnyStrategy, MPIAllReduce


def missing(options: AnyStrategy) -> str | None:
    """Why the strategy cannot be used on this machine, with what to do about it; None where it can."""
    if (reason := missing_on_node(options)) is not None:
        return reason
    return horovod_build.missing() if options.needs_build else None


def missing_on_node(options: AnyStrategy) -> str | None:
    """The same of what a node has or has not; another node may have it."""
    if options.needs_mpi and shutil.which("mpirun") is None:
        return f"strategy `{options.name}` needs Open MPI, and there is no `mpirun`: install openmpi-bin and libopenmpi-dev"
    if isinstance(options, MPIAllReduce) and importlib.util.find_spec("mpi4py") is None:
        return "strategy `mpi_allreduce` needs mpi4py: install it next to torch"
    return None
