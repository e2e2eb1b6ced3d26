"""What a site lacks is a failure that is tried again, and never a result; GPUs that are promised are never done without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scalestudy.commands.build import command as build
from scalestudy.errors import Skipped
from scalestudy.launch import launch, resolve
from scalestudy.launch.launchers import is_open_mpi
from scalestudy.site_fault import OF_JOBS, SiteFault, in_job
from scalestudy.spec.config import Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.strategies import horovod_build
from scalestudy.training.job import Resolved


@pytest.fixture(autouse=True)
def workstation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No job, no GPU, an empty cache."""
    for name in OF_JOBS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(resolve, "visible_gpus", lambda: [])
    monkeypatch.setattr(resolve, "_gpus_of_torch", lambda: 0)


def spec(**data: Any) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps(data))


def lacks_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    resolve.resolve(spec(strategy="mpi_allreduce", ranks=2), Machine(), Site())


def lacks_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    resolve.resolve(spec(compile=True), Machine(), Site())


def lacks_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    is_open_mpi("mpiexec")


def lacks_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve.resolve(spec(device="cuda"), Machine(), Site())


FAULTS = [lacks_mpirun, lacks_a_compiler, lacks_mpiexec, lacks_gpus]


@pytest.mark.parametrize("variable", OF_JOBS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_node_lacks_is_a_failure_in_a_job(fault: Any, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "7")
    with pytest.raises(SiteFault, match="give the same command again"):
        fault(monkeypatch)


@pytest.mark.parametrize("fault", FAULTS)
def test_on_a_workstation_it_is_a_reason_to_leave_the_run_out(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_job()
    with pytest.raises(Skipped):
        fault(monkeypatch)


def test_a_machine_that_promises_gpus_never_computes_on_the_cpu_unasked() -> None:
    machine = Machine(devices_per_node=4)
    assert resolve.resolve(spec(), machine, Site())[0].device == "cuda"
    assert resolve.resolve(spec(device="cpu"), machine, Site())[0].device == "cpu"
    assert resolve.resolve(spec(), Machine(devices_per_node=4, device="cpu"), Site())[0].device == "cpu"
    assert resolve.resolve(spec(), Machine(), Site())[0].device == "cpu"


@pytest.mark.parametrize(("seen", "has"), [(0, "shows none"), (2, "shows 2 of them")])
def test_gpus_that_are_promised_and_not_there_are_a_failure_with_what_to_do(
    seen: int, has: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "visible_gpus", lambda: [None] * seen)
    machine, resolved = Machine(devices_per_node=4), Resolved(1, 4, 1, "cuda", 2, None)
    with pytest.raises(SiteFault, match=f"promises 4 GPUs per node, and this node {has}") as error:
        resolve.check_promised_gpus(resolved, machine)
    assert "set `device: cpu`" in error.value.remedy
    resolve.check_promised_gpus(Resolved(1, 4, 1, "cpu", 2, None), machine)
    resolve.check_promised_gpus(Resolved(1, 4, 1, "cuda", 2, None), Machine())


def test_gpus_that_only_torch_sees_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "_gpus_of_torch", lambda: 4)
    resolve.check_promised_gpus(Resolved(1, 4, 1, "cuda", 2, None), Machine(devices_per_node=4))


def test_a_site_fault_leaves_no_result_and_says_why_in_the_runs_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def faulty(*_: Any) -> Any:
        raise SiteFault("there is no `mpirun` here")

    monkeypatch.setattr(launch, "_measure", faulty)
    out = tmp_path / "run" / "result.json"
    out.parent.mkdir()
    with pytest.raises(SiteFault):
        launch.run("run", spec(), tmp_path / "manifest.json", out, Machine())
    assert not out.exists()
    state = json.loads((out.parent / "state.json").read_text())
    assert state["state"] == "failed"
    assert "there is no `mpirun` here" in state["cause"]


@pytest.mark.parametrize(
    ("reason", "status"),
    [("its sources could not be had (no network)", 2), ("it did not compile (error)", 0)],
)
def test_a_build_that_lacks_the_network_is_a_failure_in_a_job_and_one_that_does_not_compile_an_outcome(
    reason: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horovod_build, "build", lambda: {"status": "failed", "reason": reason})
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path))
    out = tmp_path / "horovod.json"
    monkeypatch.setenv("SCALESTUDY_JOB", "job")
    done = CliRunner().invoke(build, ["horovod", "--out", str(out)])
    assert isinstance(done.exception, SiteFault) is (status == 2)
    assert out.exists() is (status == 0)
    monkeypatch.delenv("SCALESTUDY_JOB")
    assert CliRunner().invoke(build, ["horovod", "--out", str(out)]).exit_code == 0
    assert out.exists()
