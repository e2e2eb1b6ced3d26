"""One process that mpirun started: `python -m tests.integration.mpi_process equal|algorithm FOLDER [ALGORITHM]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scalestudy.strategies import horovod_build
from scalestudy.strategies.base import World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import Horovod, MPIAllReduce
from tests.integration.trainings import MODELS, Case, make_model, make_optimiser, train

RANKS = (1, 2, 3, 4, 6)
EQUAL = {
    **{model: Case(model, MPIAllReduce(name="mpi_allreduce")) for model in MODELS},
    "per parameter": Case("mlp", MPIAllReduce(name="mpi_allreduce", schedule="per_parameter")),
    "overlapped": Case("mlp", MPIAllReduce(name="mpi_allreduce", schedule="overlapped")),
    "bfloat16": Case("mlp", MPIAllReduce(name="mpi_allreduce"), dtype=torch.bfloat16),
}


def main(what: str, folder: Path, algorithm: str) -> None:
    """Train, or sum, and save what came of it."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    results = equal(rank, folder) if what == "equal" else one_algorithm(rank, size, folder, algorithm)
    torch.save(results, folder / f"{rank}.pt")


def equal(rank: int, folder: Path) -> dict[int, Any]:
    """By number of ranks and case: the parameters of this rank after training."""
    import mpi4py.MPI  # noqa: F401 (starting MPI waits for all processes, and the larger worlds come last)

    results = {}
    for ranks in RANKS:
        if rank < ranks:
            world = joined(rank, ranks, folder)
            results[ranks] = {name: train(case, world) for name, case in EQUAL.items()}
            dist.destroy_process_group()
    return results


def one_algorithm(rank: int, size: int, folder: Path, algorithm: str) -> dict[str, Any]:
    """The sum of fixed float32 vectors by an algorithm of Open MPI; beside a ring, trainings by Horovod where it is built."""
    world = joined(rank, size, folder)
    strategy: Any = build(MPIAllReduce(name="mpi_allreduce", algorithm=algorithm), world)  # type: ignore[arg-type]
    strategy.prepare(make_model("mlp", 0, torch.float32), make_optimiser)
    buffer = torch.randn(10_001, generator=torch.Generator().manual_seed(rank))
    strategy.sum(buffer)
    results: dict[str, Any] = {"sum": buffer}
    if algorithm == "ring" and horovod_build.missing() is None:
        from scalestudy.strategies.horovod import Horovod as Strategy

        Strategy.finish = lambda self: None  # type: ignore[method-assign] # Horovod cannot start twice in a process
        average = Horovod(name="horovod", transport="mpi")
        results["horovod"] = train(Case("groupnorm", average), world)
        adasum = Horovod(name="horovod", transport="mpi", operation="adasum")
        results["adasum"] = train(Case("groupnorm", adasum), world)
    dist.destroy_process_group()
    return results


def joined(rank: int, ranks: int, folder: Path) -> World:
    """A process group of the first `ranks` processes."""
    store = dist.FileStore(str(folder / f"rendezvous{ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    workers = dist.new_group(list(range(ranks)))
    return World(rank, ranks, 0, torch.device("cpu"), ranks, workers)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "default")
