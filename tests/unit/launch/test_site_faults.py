"""What a node lacks is a fault that is tried again in a job, and a property of the machine elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.commands import train
from scalestudy.errors import SiteFault, Skipped
from scalestudy.launch.job_environment import JobEnvironment
from scalestudy.launch.launchers import is_open_mpi
from scalestudy.launch.resolve import resolve
from scalestudy.spec.config import Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec

RUN = {"ranks": 2, "strategy": "allreduce", "data": {"source": "digits"}, "batch": {"per_rank": 8}}
NEEDS: dict[Any, dict[str, Any]] = {
    "mpirun": {"strategy": "mpi_allreduce"},
    "c++": {"compile": True},
}


def run(**more: object) -> RunSpec:
    """A small run on two ranks."""
    return RunSpec.model_validate({**RUN, **more})


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without any program, outside jobs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PBS_JOBID", "SLURM_JOB_ID", "JOB_ID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("program", NEEDS)
def test_a_program_that_a_jobs_node_lacks_is_a_fault_unless_the_site_says_that_it_has_none(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Skipped):
        resolve(run(**NEEDS[program]), Machine(), Site())
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(SiteFault) as caught:
        resolve(run(**NEEDS[program]), Machine(), Site())
    assert "load it in `scheduler.setup` of site.yaml" in caught.value.remedy
    assert f"lacks: [{program}]" in caught.value.remedy
    with pytest.raises(Skipped):
        resolve(run(**NEEDS[program]), Machine(), Site(lacks=(program,)))


@pytest.mark.usefixtures("bare")
def test_a_launcher_that_a_jobs_node_lacks_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)
    monkeypatch.setenv("JOB_ID", "7")
    with pytest.raises(SiteFault, match="there is no `mpiexec` here"):
        is_open_mpi("mpiexec")


def test_a_node_that_shows_no_gpu_does_not_compute_on_its_cpu_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalestudy.launch.resolve.visible_gpus", list)
    with pytest.raises(SiteFault, match="no GPU can be seen, and the machine file has 4 per node"):
        resolve(run(), Machine(devices_per_node=4), Site())
    for asked in (run(device="cpu"), Machine(devices_per_node=4, device="cpu"), Machine()):
        spec, machine = (asked, Machine(devices_per_node=4)) if isinstance(asked, RunSpec) else (run(), asked)
        assert resolve(spec, machine, Site())[0].device == "cpu"


def test_a_fault_is_told_to_the_executor_that_started_the_job_and_to_nobody_elsewhere(tmp_path: Path) -> None:
    JobEnvironment({"SCALESTUDY_FAULT": str(tmp_path / "fault")}).report_fault("node1: no GPU\ncan be seen")
    assert (tmp_path / "fault").read_text() == "node1: no GPU can be seen\n"
    JobEnvironment({}).report_fault("node1: no GPU can be seen")
    JobEnvironment({"SCALESTUDY_FAULT": "/nowhere/fault"}).report_fault("a disk that is full must not hide the fault")


def test_training_on_an_unfit_node_ends_with_the_fault_and_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalestudy.launch.resolve.visible_gpus", list)
    # The data is not the matter here.
    monkeypatch.setattr("scalestudy.data.prepare.datasets.ensure", lambda *_: None)
    monkeypatch.setattr("scalestudy.launch.launch.read_manifest", lambda _: SimpleNamespace(status="ready"))
    monkeypatch.setenv("SCALESTUDY_FAULT", str(tmp_path / "fault"))
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path))
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)
    manifest, out = tmp_path / "manifest.json", tmp_path / "run" / "result.json"
    manifest.touch()
    out.parent.mkdir()
    with pytest.raises(SiteFault):
        train._make("run", run(ranks=1), manifest, out, Machine(devices_per_node=4))
    assert "no GPU can be seen" in (tmp_path / "fault").read_text()
    assert not out.exists()
    assert json.loads((out.parent / "state.json").read_text())["state"] == "failed"
