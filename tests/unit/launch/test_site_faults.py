"""What a node lacks is a fault that is tried again in a job, and a reason to skip a run elsewhere; promised GPUs are used."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.cli import run_command
from scalestudy.errors import Skipped
from scalestudy.hardware import Accelerators, Device
from scalestudy.launch import resolve
from scalestudy.site_fault import EXECUTOR_JOB, JOB_IDS, SITE, SiteFault
from scalestudy.spec.config import Site
from scalestudy.spec.ids import run_id
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A stand-in for what a node says of its accelerators."""
    found = Accelerators("cuda" if count else "", (Device("stand-in", 0, None),) * count, "a stand-in")
    monkeypatch.setattr(resolve, "accelerators", lambda: found)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No job, no program, no GPU, no data."""
    for name in (EXECUTOR_JOB, *JOB_IDS, SITE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path))
    gpus(monkeypatch, 0)


def spec(**data: Any) -> RunSpec:
    return RunSpec.model_validate(data)


NEEDS: dict[str, dict[str, Any]] = {
    "mpirun": {"strategy": "mpi_allreduce", "ranks": 2},
    "c++": {"compile": True},
    "gpu": {"device": "cuda"},
}


@pytest.mark.parametrize("what", NEEDS)
def test_what_a_jobs_node_lacks_is_a_fault_unless_the_site_says_that_it_has_none(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Skipped):
        resolve.resolve(spec(**NEEDS[what]), Machine(), Site())
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(SiteFault) as caught:
        resolve.resolve(spec(**NEEDS[what]), Machine(), Site())
    assert "then run the same command again" in caught.value.remedy
    assert f"`lacks: [{what}]` in the profile's site.yaml has such runs skipped" in caught.value.remedy
    monkeypatch.setenv(SITE, str(Path("profiles/lab/site.yaml").absolute()))
    assert "what profiles/lab/site.yaml loads and requests" in SiteFault("no GPU").remedy
    with pytest.raises(Skipped):
        resolve.resolve(spec(**NEEDS[what]), Machine(), Site.model_validate({"lacks": (what,)}))


def test_a_machine_that_promises_gpus_never_computes_on_the_cpu_unasked() -> None:
    machine = Machine(devices_per_node=4)
    assert resolve.resolve(spec(), machine, Site())[0].device == "cuda"
    assert resolve.resolve(spec(device="cpu"), machine, Site())[0].device == "cpu"
    assert resolve.resolve(spec(), Machine(devices_per_node=4, device="cpu"), Site())[0].device == "cpu"
    assert resolve.resolve(spec(), Machine(), Site())[0].device == "cpu"


def test_training_on_an_unfit_node_ends_with_the_fault_told_and_no_result(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The data is not the matter here.
    monkeypatch.setattr("scalestudy.data.prepare.datasets.prepare", lambda *_: None)
    monkeypatch.setattr("scalestudy.launch.launch.read_manifest", lambda _: SimpleNamespace(status="ready"))
    monkeypatch.setattr("scalestudy.commands.one_run.read_machine", lambda _: Machine(devices_per_node=4))
    monkeypatch.setenv("MULTINODE_FAULT", str(here / "fault"))
    monkeypatch.setenv(EXECUTOR_JOB, "job")
    asked = spec()
    out = Path("results/gpus/runs") / run_id(asked) / "result.json"
    out.parent.mkdir(parents=True)
    (out.parent / "spec.json").write_text(json.dumps(asked.to_dict()))
    assert run_command(["train", "--out", str(out)]) == 2
    why = "config/machines/gpus.yaml says 4 GPUs per node, but this node has none"
    assert why in capsys.readouterr().err
    assert why in (here / "fault").read_text()
    assert not out.exists()
    state = json.loads((out.parent / "state.json").read_text())
    assert (state["state"], why in state["cause"]) == ("failed", True)
