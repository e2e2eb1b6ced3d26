"""Strategies whose ranks mpirun starts, against training in one process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.forked import on_processes
from tests.integration.mpi_process import EQUAL, RANKS, STAND_IN, main, pipes
from tests.integration.trainings import (
    difference,
    reference,
)

pytestmark = [
    pytest.mark.skipif(
        shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None,
        reason="MPI is not tested: mpirun or mpi4py is missing (Debian: openmpi-bin libopenmpi-dev)",
    ),
    pytest.mark.usefixtures("one_thread"),
]


def mpirun(ranks: int, folder: Path) -> list[Any]:
    """What each of `ranks` processes returned."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [
        "mpirun",
        *root,
        "--oversubscribe",
        "--bind-to",
        "none",
        "-n",
        str(ranks),
        "sh",
        "-c",
        STAND_IN,
        str(folder),
    ]
    environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
    pipes(ranks, folder)

    def to_its_end() -> None:
        started = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = started.communicate(timeout=240)
        finally:
            started.terminate()  # mpirun ends its processes; were it killed, they would stay
            started.wait()
        assert started.returncode == 0, said

    return on_processes(ranks, folder, main, folder, meanwhile=to_its_end)


@pytest.fixture(scope="module")
def by_doubling(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What 4 processes left that use Open MPI's recursive doubling, all of them or the first few."""
    return mpirun(max(RANKS), tmp_path_factory.mktemp("doubling"))


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
