"""Compare strategies under mpirun with training in one process.

A rank is forked from a process that has torch, in the environment of a shell that mpirun starts in its place.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scalestudy.strategies.base import World
from scalestudy.strategies.build import build
from scalestudy.strategies.catalogue import MPIAllReduce
from tests.integration.forked import on_processes
from tests.integration.trainings import MODELS, Case, difference, make_model, make_optimiser, reference, train

pytestmark = [
    pytest.mark.skipif(
        shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None,
        reason="MPI is not tested: mpirun or mpi4py is missing (Debian: openmpi-bin libopenmpi-dev)",
    ),
    pytest.mark.usefixtures("one_thread"),
]
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
"""What mpirun starts for each rank: hands its environment over, and ends when the rank does. $0: folder of the pipes."""


def rank_main(rank: int, folder: Path) -> dict[str, Any]:
    """Train and sum; return the results."""
    environment = (folder / f"environment.{rank}").read_bytes().decode().split("\0")
    os.environ.clear()
    os.environ.update(line.split("=", 1) for line in environment if line)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    end = open(folder / f"end.{rank}", "w")  # noqa: SIM115 # closed by the end of this process, however that comes
    results = in_worlds(rank, folder)
    from mpi4py import MPI

    MPI.Finalize()
    print(0, file=end, flush=True)
    return results


def in_worlds(rank: int, folder: Path) -> dict[str, Any]:
    """Return this rank's parameters and sums after training, by case and number of ranks."""
    # Starting MPI waits for all processes, and the larger worlds come last.
    os.environ.update(DOUBLING)
    import mpi4py.MPI  # noqa: F401 # importing it starts MPI

    results: dict[str, Any] = {}
    for ranks in RANKS:
        if rank < ranks:
            store = dist.FileStore(str(folder / f"rendezvous{ranks}"), ranks)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
            workers = dist.new_group(list(range(ranks)))
            world = World(rank, ranks, 0, torch.device("cpu"), ranks, workers)  # type: ignore[arg-type]  # of a member, new_group never returns an int
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


@pytest.fixture(scope="module")
def by_doubling(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What 4 processes left that use Open MPI's recursive doubling, all of them or the first few."""
    count, folder = max(RANKS), tmp_path_factory.mktemp("doubling")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(count), "sh", "-c", STAND_IN]
    environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
    for rank in range(count):
        for name in ("environment", "end"):
            os.mkfifo(folder / f"{name}.{rank}")  # each end waits for the other

    def to_its_end() -> None:
        started = subprocess.Popen(
            [*command, str(folder)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = started.communicate(timeout=240)
        finally:
            started.terminate()  # mpirun ends its processes; were it killed, they would stay
            started.wait()
        assert started.returncode == 0, said

    return on_processes(count, folder, rank_main, folder, meanwhile=to_its_end)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("case", [name for name in EQUAL if name != "bfloat16"])
def test_mpi_allreduce_gives_the_weights_of_one_process(by_doubling: list[Any], ranks: int, case: str) -> None:
    for rank in range(ranks):
        assert difference(by_doubling[rank][f"{ranks} {case}"], reference(EQUAL[case].model, ranks)) < 1e-12


def test_types_that_mpi_does_not_have_are_summed_in_a_wider_one(by_doubling: list[Any]) -> None:
    assert difference(by_doubling[0]["3 bfloat16"], reference("mlp", 3)) < 0.1


def test_four_ranks_sum_in_pairs_of_pairs(by_doubling: list[Any]) -> None:
    parts = [torch.randn(10_001, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
    assert torch.equal(by_doubling[0]["4 sum"], (parts[0] + parts[1]) + (parts[2] + parts[3]))
