"""Whether torch runs on a GPU, by its machine code and the driver, and the lock file that is named where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.doctor.findings import node_findings
from scalestudy.cluster.doctor.gpu_support import LOCKS, carries, problem
from scalestudy.spec.machine import Machine

NEW = {"version": "2.14.1+cu130", "cuda": "13.0", "arch": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]}
OLD = {
    "version": "2.7.1+cu126",
    "cuda": "12.6",
    "arch": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
}
V100 = {"name": "Tesla V100-SXM2-16GB", "capability": [7, 0], "driver_cuda": [13, 0]}


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with both lock files."""
    (tmp_path / "envs").mkdir()
    for lock in LOCKS:
        (tmp_path / lock.file).write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_70"], (7, 5), True),
        (["sm_90"], (10, 0), False),
        (["sm_100"], (10, 0), True),
        (["sm_120"], (10, 3), False),
        (["sm_90", "compute_90"], (12, 0), True),
        (["compute_90"], (8, 9), False),
        (["sm_90a"], (9, 0), True),
    ],
)
def test_machine_code_runs_on_its_major_version_and_ptx_on_later_ones(
    arch: list[str], capability: tuple[int, int], runs: bool
) -> None:
    assert carries(arch, capability) is runs


def test_a_gpu_older_than_torchs_code_is_found_before_a_run_dies_of_it() -> None:
    found = problem(NEW, V100)
    assert found is not None
    assert "Tesla V100-SXM2-16GB (sm_70), for which torch 2.14.1+cu130 holds no code" in found[0]
    assert "no kernel image" in found[0]
    assert found[1] == "take the lock envs/requirements-cuda126.txt: make setup LOCK=cuda126"
    assert problem(OLD, V100) is None


def test_a_driver_older_than_torchs_cuda_is_found_though_torch_sees_no_gpu() -> None:
    found = problem({**NEW, "devices": 0}, {"name": "A100", "capability": [8, 0], "driver_cuda": [12, 4]})
    assert found is not None
    assert "has a driver for CUDA 12.4, and torch 2.14.1+cu130 needs one for CUDA 13" in found[0]
    assert "LOCK=cuda126" in found[1]


def test_a_gpu_newer_than_an_old_torch_gets_the_default_lock() -> None:
    found = problem(OLD, {"name": "B200", "capability": [10, 0], "driver_cuda": [13, 0]})
    assert found is not None
    assert found[1] == "take the lock envs/requirements.txt: make setup"


def test_a_torch_without_cuda_beside_a_gpu_is_found() -> None:
    found = problem({"version": "2.14.1+cpu", "cuda": None, "arch": []}, V100)
    assert found is not None
    assert "torch 2.14.1+cpu has no CUDA" in found[0]


@pytest.mark.parametrize("gpu", [{}, {"error": "libcuda.so.1: cannot open shared object file"}])
def test_of_a_node_without_a_driver_nothing_is_said(gpu: dict[str, Any]) -> None:
    assert problem(NEW, gpu) is None


def test_a_lock_that_is_not_there_is_not_named(locks: Path) -> None:
    (locks / "envs/requirements-cuda126.txt").unlink()
    found = problem(NEW, V100)
    assert found is not None
    assert "LOCK=" not in found[1]
    assert "install a build of torch of CUDA 13 or older that holds code for sm_70" in found[1]


def test_nodes_with_the_same_trouble_are_named_together() -> None:
    report = {
        "shared": True, "skew_s": 0.0, "mpi": "4.1", "data_roots": {}, "python": {"version": "3.11"}, "scratch": {},
        "torch": {**NEW, "devices": 4}, "gpu": V100,
    }  # fmt: skip
    found = list(node_findings([{**report, "host": "n1"}, {**report, "host": "n2"}], 2, Machine()))
    assert [finding.what[:7] for finding in found] == ["n1, n2 "]
