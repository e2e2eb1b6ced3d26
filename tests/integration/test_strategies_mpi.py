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

from scalestudy.strategies.catalogue import MPIAllReduce
from tests.integration.forked import on_processes
from tests.integration.trainings import MODELS, Case, difference, reference, train_in_worlds

pytestmark = [
    pytest.mark.skipif(
        shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None,
        reason="MPI is not tested: mpirun or mpi4py is missing (Debian: openmpi-bin libopenmpi-dev)",
    ),
    pytest.mark.usefixtures("one_thread"),
]
RANKS = (2, 3, 4)
BY_MPI: dict[str, Any] = {"name": "mpi_allreduce"}
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


def rank_main(rank: int, folder: Path) -> dict[int, dict[str, Any]]:
    """Train; return the results."""
    environment = (folder / f"environment.{rank}").read_bytes().decode().split("\0")
    os.environ.clear()
    os.environ.update(line.split("=", 1) for line in environment if line)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    end = open(folder / f"end.{rank}", "w")  # noqa: SIM115 # closed by the end of this process, however that comes
    # Starting MPI waits for all processes, and the larger worlds come last.
    from mpi4py import MPI

    results = train_in_worlds(rank, folder, dict.fromkeys(RANKS, EQUAL))
    MPI.Finalize()
    print(0, file=end, flush=True)
    return results


@pytest.fixture(scope="module")
def by_mpi(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What 4 processes left, all of them or the first few."""
    count, folder = max(RANKS), tmp_path_factory.mktemp("mpi")
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
def test_mpi_allreduce_gives_the_weights_of_one_process(by_mpi: list[Any], ranks: int, case: str) -> None:
    for rank in range(ranks):
        assert difference(by_mpi[rank][ranks][case], reference(EQUAL[case].model, ranks)) < 1e-12


def test_types_that_mpi_does_not_have_are_summed_in_a_wider_one(by_mpi: list[Any]) -> None:
    assert difference(by_mpi[0][3]["bfloat16"], reference("mlp", 3)) < 0.1
