"""From a strategy's options to the strategy, and what that needs besides torch. Imports nothing heavy by itself."""

from __future__ import annotations

import importlib.util
import shutil
from importlib import import_module
from typing import TYPE_CHECKING

from scalestudy.site_fault import Lackable
from scalestudy.strategies.catalogue import AllReduce, AnyStrategy, MPIAllReduce, Scheduled

if TYPE_CHECKING:
    from scalestudy.strategies.base import Strategy, World


def build(options: AnyStrategy, world: World) -> Strategy:
    """One process's side of the strategy that `options` describe. Every process of the run calls this once.

    A strategy is the class named as its options, in the module of its name; those of `Scheduled` are in `allreduce/`.
    """
    module = f"allreduce.{options.name}" if isinstance(options, Scheduled) else options.name
    if isinstance(options, AllReduce):
        module = "ddp"
    made = getattr(import_module(f"scalestudy.strategies.{module}"), type(options).__name__)
    strategy: Strategy = made(options, world)
    return strategy


def missing_build(options: AnyStrategy) -> str | None:
    """Name the package that must be compiled for the strategy, with the remedy; None where none is missing."""
    if options.needs_build and importlib.util.find_spec("horovod") is None:
        return "Horovod is not installed here: run `make horovod` (minutes), then `scalestudy forget --skipped`"
    return None


def missing_on_node(options: AnyStrategy, launcher: str = "mpirun") -> tuple[str, Lackable] | None:
    """Return the lack of this node for the strategy, with the remedy; None where it has all. Another node may have it.

    `launcher` starts the ranks that speak MPI.
    """
    if options.needs_mpi and shutil.which(launcher) is None:
        remedy = "install openmpi-bin and libopenmpi-dev (or mpich), or load a module of MPI"
        return f"strategy `{options.name}` needs MPI, and there is no `{launcher}`: {remedy}", "mpirun"
    if isinstance(options, MPIAllReduce) and importlib.util.find_spec("mpi4py") is None:
        return "strategy `mpi_allreduce` needs mpi4py: install it next to torch", "mpi4py"
    return None
