"""What the doctor finds on nodes, and the job in which it looks there."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.doctor import examine, job
from scalestudy.cluster.doctor.findings import Finding
from scalestudy.cluster.doctor.probe import probe
from scalestudy.errors import UserError
from scalestudy.spec.config import read_site
from scalestudy.spec.machine import Machine
from snakemake_executor_plugin_multinode.schedulers import JobRef, scheduler_of
from snakemake_executor_plugin_multinode.schedulers.command import CommandAnswer

GPU = Machine(devices_per_node=4, device="cuda", cores_per_node=64, memory_gib=256)


@pytest.fixture
def site(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site file of a profile in an empty project."""
    file = here / "profiles/lab/site.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("scratch: /tmp\n")
    monkeypatch.setenv("SCALESTUDY_SITE", str(file))
    return file


def report(**changes: Any) -> dict[str, Any]:
    """A node where all is well."""
    return {
        "host": "n1", "shared": True, "skew_s": 0.0, "mpi": "mpirun (Open MPI) 4.1.4", "data_roots": {},
        "python": {"version": "3.11.7"}, "torch": {"version": "2.9", "devices": 4}, "scratch": {"folder": "/scratch", "free_gib": 900},
        **changes,
    }  # fmt: skip


def said(*reports: dict[str, Any], nodes: int | None = None) -> list[tuple[str, str]]:
    found = examine.node_findings(reports, nodes or len(reports), GPU, "config/machines/mine.yaml")
    return [(finding.what, finding.remedy) for finding in found]


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"shared": False}, "this folder is not seen", "storage that all nodes share"),
        ({"torch": {"error": "No module named 'torch'"}}, "torch cannot be imported", "profiles/lab/site.yaml"),
        ({"torch": {"version": "2.9", "devices": 0}}, "no GPU that torch can use", "profiles/lab/site.yaml"),
        ({"torch": {"version": "2.9", "devices": 2}}, "fewer GPUs than `devices_per_node: 4` of config/machines/mine.yaml", "devices_per_node"),
        ({"torch": {"version": "2.9", "devices": 4, "kind": "xpu"}}, "an accelerator of a type that runs cannot use", "device: cpu"),
        ({"scratch": {"folder": "/scratch", "error": "Read-only file system"}}, "its scratch cannot be written", "profiles/lab/site.yaml"),
        ({"mpi": None}, "no mpirun", "a module of MPI: `modules` in profiles/lab/site.yaml"),
        ({"skew_s": -40.0}, "a clock that differs by more than a second from", "administrators"),
        ({"data_roots": {"image_folder": False}}, "no folder of `data_roots`", "profiles/lab/site.yaml"),
        ({"decoder": "plain: simplejpeg and torch"}, "no C kernel to decode images", ""),
        ({"code": "000000000000"}, "another scalestudy than this one", "image again"),
        ({"node_cores": 32}, "fewer cores than `cores_per_node: 64` of config/machines/mine.yaml", "correct"),
        ({"memory_gib": 187.5}, "less memory than `memory_gib: 256.0` of config/machines/mine.yaml", "correct"),
    ],
)  # fmt: skip
def test_a_lack_is_named_with_its_nodes_and_remedy(site: Path, changes: dict[str, Any], what: str, remedy: str) -> None:
    (first, *_) = said(report(**changes), report(**{**changes, "host": "n2"}))
    assert first[0].startswith(f"n1, n2: {what}")
    assert remedy in first[1]


def test_nothing_is_said_where_all_is_well_and_mpirun_is_not_missed_where_the_site_has_none(site: Path) -> None:
    assert said(report(), report(host="n2")) == []
    site.write_text("lacks: [mpirun]\n")
    assert said(report(mpi=None)) == []


def test_nodes_that_did_not_answer_are_counted_and_different_versions_found() -> None:
    assert said(report(), nodes=2)[0][0] == "1 of 2 nodes answered"
    assert "different versions" in said(report(), report(host="n2", torch={"version": "2.8", "devices": 4}))[-1][0]


NEW = {"version": "2.14.1+cu130", "cuda": "13.0", "arch": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]}
OLD = {"version": "2.7.1+cu126", "cuda": "12.6", "arch": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_90"]}
V100 = {"name": "Tesla V100", "capability": [7, 0], "driver_cuda": [13, 0]}


@pytest.mark.parametrize(
    ("torch", "gpu", "what"),
    [
        (NEW, V100, "Tesla V100 (sm_70), for which torch 2.14.1+cu130 holds no code"),
        (NEW, {"capability": [8, 0], "driver_cuda": [12, 4]}, "a driver for CUDA 12.4, and torch 2.14.1+cu130 needs one for CUDA 13"),
        (OLD, {"capability": [10, 0], "driver_cuda": [13, 0]}, "sm_100"),
        ({"version": "2.14.1+cpu", "cuda": None, "arch": []}, V100, "torch 2.14.1+cpu has no CUDA"),
        (OLD, V100, None),
        (NEW, {"error": "NVML Shared Library Not Found"}, None),
    ],
)  # fmt: skip
def test_a_torch_that_cannot_use_the_gpu_is_found(torch: dict[str, Any], gpu: dict[str, Any], what: str | None) -> None:
    found = said(*(report(torch={**torch, "devices": 4}, gpu=gpu, host=host) for host in ("n1", "n2")))
    assert [text.startswith("n1, n2: ") and what in text for text, _ in found] == ([] if what is None else [True])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("modules: [no/such/module]", "module load no/such/module"),
        ("scheduler: {kind: slurm, setup: ['true', ls /nowhere/at/all]}", "ls /nowhere/at/all"),
        ("container: {image: x.sif, command: no-apptainer-here}", "no-apptainer-here exec"),
    ],
)
def test_the_sites_software_is_tried_before_anything_else_and_the_line_that_fails_is_named(
    text: str, what: str, tmp_path: Path, site: Path
) -> None:
    """The job's own script, run by bash; no scheduler takes part."""
    site.write_text(text + "\n")
    request = job.probe_request("probe", tmp_path, Machine(), 1)
    job.write_probe(request, read_site(), job.write_token(tmp_path))
    with open(tmp_path / "job.log", "w") as log:
        subprocess.run([request.script], stdout=log, stderr=log, check=False)
    with pytest.raises(UserError) as error:
        job.raise_failed_set_up(request)
    assert what in error.value.what
    assert error.value.where == "profiles/lab/site.yaml"
    assert not list(tmp_path.glob("node.*"))


TAKEN = CommandAnswer(0, "7.head\n", "")


def test_a_job_that_ends_without_a_report_is_a_sentence_with_its_output(site: Path) -> None:
    site.write_text("scheduler: {kind: pbs, setup: ['export PATH=/usr/bin:/bin']}\n")  # scalestudy is not there

    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        if argv[0] == "qsub":
            with open(argv[argv.index("-o") + 1], "w") as log:
                subprocess.run([argv[-1]], stdout=log, stderr=log, check=False)
        return TAKEN

    with pytest.raises(UserError, match="the job ended without a report") as error:
        job.probe_in_job(scheduler_of({"kind": "pbs"}, run), Machine(), 1, 30)
    assert "not found" in error.value.what and "software of jobs" in str(error.value.remedy)


def begun(folder: Path, calls: list[str], answer: CommandAnswer) -> Any:
    """The doctor's job on a PBS of text: `calls` gets what was called."""

    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        calls.append(" ".join(argv))
        return answer if argv[0] == "qsub" else CommandAnswer(0, "", "")

    scheduler = scheduler_of({"kind": "pbs"}, run)
    return job.submitted(scheduler, job.probe_request("probe", folder, Machine(nodes=20), 2))


def test_a_job_that_cannot_be_submitted_is_a_sentence(tmp_path: Path) -> None:
    refused = CommandAnswer(1, "", "qsub: Unauthorized Request")
    with pytest.raises(UserError, match="refused the job: qsub: Unauthorized"), begun(tmp_path, [], refused):
        pass


def test_a_job_that_is_over_is_not_deleted_and_one_that_is_not_is(tmp_path: Path) -> None:
    calls: list[str] = []
    (tmp_path / "status").mkdir()
    with begun(tmp_path, calls, TAKEN):
        (tmp_path / "status/probe.ended").write_text("exit=0\nbegan=1\nended=2\n")
    assert not any(call.startswith("qdel") for call in calls)
    (tmp_path / "status/probe.ended").unlink()
    with begun(tmp_path, calls, TAKEN):
        pass
    assert calls[-1] == "qdel 7.head"


QSTAT = """<?xml version='1.0'?>
<job_info><queue_info></queue_info><job_info><job_list state="pending"><JB_job_number>1</JB_job_number>
<JB_name>probe</JB_name><state>qw</state></job_list></job_info></job_info>
"""
QSTAT_J = """job_number:                 1
scheduling info:            cannot run in PE "two" because it only offers 4 slots
                            queue instance "all.q@n1" dropped because it is full
"""


def test_the_reason_why_a_job_waits_is_that_of_grid_engine() -> None:
    def run(argv: Sequence[str], _limit_s: float) -> CommandAnswer:
        return CommandAnswer(0, QSTAT if "-xml" in argv else QSTAT_J, "")

    assert job.in_queue(scheduler_of({"kind": "sge"}, run), JobRef("probe", "1")) == (
        'qw: cannot run in PE "two" because it only offers 4 slots; queue instance "all.q@n1" dropped because it is full'
    )


@pytest.mark.slow
def test_this_machine_is_probed_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)
    (tmp_path / "token").write_text("abc")
    found = probe(tmp_path, "abc")
    assert found["shared"] is True
    assert abs(found["skew_s"]) < 1
    assert found["torch"]["version"]
    assert found["scratch"]["free_gib"] > 0
    gpu = {"name": "V100", "capability": [7, 0], "driver_cuda": [12, 4]}
    shown = examine.text([{**found, "gpu": gpu}], [Finding("no mpirun", "load one"), Finding("this machine")])
    assert "Python   3." in shown and "NVML: V100, sm_70, torch holds" in shown and "driver for CUDA 12.4" in shown
    assert shown.endswith("! no mpirun\n    load one\n- this machine")
