"""A rank of mpirun: forked from a process that has torch, in the environment of a shell that mpirun starts in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.strategies.base import World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import MPIAllReduce
from tests.integration.trainings import MODELS, Case, make_model, make_optimiser, train

RANKS = (2, 3, 4)
BY_MPI: dict[str, Any] = {"name": "mpi_allreduce"}
DOUBLING = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "3"}
"""Variables by which Open MPI sums by recursive doubling: pairs, then pairs of pairs."""
EQUAL = {
    **{model: Case(model, MPIAllReduce(**BY_MPI)) for model in MODELS},
    "per parameter": Case("mlp", MPIAllReduce(**BY_MPI, schedule="per_parameter")),
    "overlapped": Case("mlp", MPIAllReduce(**BY_MPI, schedule="overlapped")),
    "bfloat16": Case("mlp", MPIAllReduce(**BY_MPI), dtype=torch.bfloat16),
}


STAND_IN = """env -0 > "$0/environment.$OMPI_COMM_WORLD_RANK"
read -r status < "$0/end.$OMPI_COMM_WORLD_RANK" && exit "$status"
exit 1"""
"""What mpirun starts for each rank: hands its environment over, and ends when the rank does. $0 is the folder of `pipes`."""


def pipes(ranks: int, folder: Path) -> None:
    """What the ranks and those in their place speak through: each end waits for the other."""
    for rank in range(ranks):
        for name in ("environment", "end"):
            os.mkfifo(folder / f"{name}.{rank}")


def main(rank: int, folder: Path) -> dict[str, Any]:
    """Train and sum; returns what came of it."""
    environment = (folder / f"environment.{rank}").read_bytes().decode().split("\0")
    os.environ.clear()
    os.environ.update(line.split("=", 1) for line in environment if line)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    end = open(folder / f"end.{rank}", "w")  # noqa: SIM115 # closed by the end of this process, however that comes
    results = by_doubling(rank, folder)
    from mpi4py import MPI

    MPI.Finalize()
    print(0, file=end, flush=True)
    return results


def by_doubling(rank: int, folder: Path) -> dict[str, Any]:
    """Of each number of ranks, this rank's parameters after training, by case, and what it summed."""
    # Starting MPI waits for all processes, and the larger worlds come last.
    os.environ.update(DOUBLING)
    import mpi4py.MPI  # noqa: F401 # importing it starts MPI

    results: dict[str, Any] = {}
    for ranks in RANKS:
        if rank < ranks:
            world = joined(rank, ranks, folder)
            results |= {f"{ranks} {name}": train(case, world) for name, case in EQUAL.items()}
            results[f"{ranks} sum"] = summed(MPIAllReduce(**BY_MPI), world)
            dist.destroy_process_group()
    return results


def summed(options: MPIAllReduce, world: World) -> torch.Tensor:
    """The sum of fixed float32 vectors of all ranks."""
    strategy: Any = build(options, world)
    strategy.prepare(make_model("mlp", 0, torch.float32), make_optimiser)
    buffer = torch.randn(10_001, generator=torch.Generator().manual_seed(world.rank))
    strategy.sum(buffer)
    return buffer


def joined(rank: int, ranks: int, folder: Path) -> World:
    """A process group of the first `ranks` processes."""
    store = dist.FileStore(str(folder / f"rendezvous{ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    workers = dist.new_group(list(range(ranks)))
    return World(rank, ranks, 0, torch.device("cpu"), ranks, workers)  # type: ignore[arg-type]
