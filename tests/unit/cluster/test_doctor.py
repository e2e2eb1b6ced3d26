"""What the doctor says about nodes, and where it looks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.doctor import examine, probe_job
from scalestudy.cluster.doctor.probe import probe
from scalestudy.errors import UserError
from scalestudy.spec.config import read_site
from scalestudy.spec.machine import Machine
from snakemake_executor_plugin_multinode.site import SchedulerSettings

GPU = Machine(devices_per_node=4, device="cuda")


def report(**changes: Any) -> dict[str, Any]:
    """A node where all is well."""
    return {
        "host": "n1", "shared": True, "skew_s": 0.0, "mpi": "mpirun (Open MPI) 4.1.4", "data_roots": {},
        "python": {"version": "3.11.7"}, "torch": {"version": "2.9", "devices": 4}, "scratch": {"folder": "/scratch", "free_gib": 900},
        **changes,
    }  # fmt: skip


def said(*reports: dict[str, Any], nodes: int | None = None) -> list[tuple[str, str]]:
    found = examine.node_findings(reports, len(reports) if nodes is None else nodes, GPU)
    return [(finding.what, finding.remedy) for finding in found]


def test_of_nodes_where_all_is_well_nothing_is_said() -> None:
    assert said(report(), report(host="n2")) == []


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"shared": False}, "n1 does not see this folder", "storage that all nodes share"),
        ({"torch": {"error": "No module named 'torch'"}}, "n1 cannot import torch", "scheduler.setup"),
        ({"torch": {"version": "2.9", "devices": 0}}, "n1 has no GPU that torch can use", "the request of GPUs in the profile's site.yaml"),
        ({"torch": {"version": "2.9", "devices": 2}}, "n1 has fewer GPUs than `devices_per_node: 4` of the machine file", "devices_per_node"),
        ({"torch": {"version": "2.9", "devices": 4, "accelerator": "xpu"}}, "n1 has an accelerator of a type that runs cannot use", "device: cpu"),
        ({"scratch": {"folder": "/scratch", "error": "Read-only file system"}}, "n1 cannot write its scratch", "scratch"),
        ({"mpi": None}, "n1 has no mpirun", "a module of MPI"),
        ({"skew_s": -40.0}, "n1 has a clock that differs by more than a second from", "administrators"),
        ({"data_roots": {"image_folder": False}}, "n1 lacks a folder of `data_roots`", "site.yaml"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_with_what_to_do(changes: dict[str, Any], what: str, remedy: str) -> None:
    (first, *_) = said(report(**changes))
    assert what in first[0]
    assert remedy in first[1]


def test_every_remedy_that_is_about_a_file_names_the_profiles_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profiles/lab").mkdir(parents=True)
    (tmp_path / "profiles/lab/site.yaml").write_text("scheduler: {kind: pbs, request: '[x'}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "profiles/lab/site.yaml"))
    torch = {"version": "2.9", "devices": 0}
    broken = report(torch=torch, scratch={"folder": "/s", "error": "x"}, mpi=None, data_roots={"image_folder": False})
    found = [remedy for _, remedy in said(broken, nodes=2)] + [said(report(torch={"error": "x"}))[0][1]]
    assert len([remedy for remedy in found if "profiles/lab/site.yaml" in remedy]) == 6
    assert not [remedy for remedy in found if " site.yaml" in remedy]


def test_a_node_that_has_less_than_the_machine_file_says_is_named_with_the_file() -> None:
    machine = Machine(cores_per_node=64, memory_gib=256)
    found = [
        finding.what
        for finding in examine.node_findings(
            [report(node_cores=32, memory_gib=187.5)], 1, machine, "config/machines/mine.yaml"
        )
    ]
    assert found == [
        "n1 has fewer cores than `cores_per_node: 64` of config/machines/mine.yaml",
        "n1 has less memory than `memory_gib: 256.0` of config/machines/mine.yaml",
    ]


def test_several_nodes_have_their_verb() -> None:
    machine = Machine(cores_per_node=64)
    reports = [{**report(node_cores=32), "host": host} for host in ("n1", "n2")]
    (found,) = examine.node_findings(reports, 2, machine, "m.yaml")
    assert found.what == "n1, n2 have fewer cores than `cores_per_node: 64` of m.yaml"


def test_mpirun_is_not_missed_where_the_site_says_that_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text("lacks: [mpirun]\n")
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    assert said(report(mpi=None)) == []


def test_another_scalestudy_on_the_nodes_is_found() -> None:
    assert "runs another scalestudy than this one" in said(report(code="000000000000"))[0][0]


def run_probe_job(folder: Path, settings: SchedulerSettings) -> int:
    """The exit status of the doctor's job, its own script run by bash. UserError for a set-up that fails."""
    request = probe_job.probe_request("probe", folder, Machine(), 1)
    probe_job.write_script(request, read_site(), settings, probe_job.write_token(folder))
    with open(folder / "job.log", "w") as log:
        done = subprocess.run([request.script], stdout=log, stderr=log, check=False)
    probe_job.raise_failed_set_up(folder, "probe", probe_job.set_up(read_site(), settings))
    return done.returncode


@pytest.mark.parametrize(
    ("site", "setup", "what"),
    [
        ("modules: [no/such/module]", (), "`modules` fails on"),
        ("scratch: /tmp", ("true", "ls /nowhere/at/all"), "`scheduler.setup` fails on"),
        ("container: {image: x.sif, command: no-apptainer-here}", (), "`container.image` fails on"),
    ],
)
def test_the_sites_software_is_tried_before_anything_else_and_the_key_that_fails_is_named(
    site: str, setup: tuple[str, ...], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's own script, run by bash; no scheduler takes part."""
    (tmp_path / "site.yaml").write_text(site + "\n")
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        run_probe_job(tmp_path, SchedulerSettings(kind="slurm", setup=setup))
    assert what in error.value.what
    assert error.value.where == "site.yaml"
    assert not list(tmp_path.glob("node.*"))


def test_nodes_that_did_not_answer_are_counted() -> None:
    assert said(report(), nodes=2)[0][0] == "1 of 2 nodes answered"


def test_different_versions_are_found() -> None:
    assert "different versions" in said(report(), report(host="n2", torch={"version": "2.8", "devices": 4}))[-1][0]


def commands(folder: Path, *names: str) -> None:
    """Stand-ins for scheduler commands that answer nothing."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)


def test_slurm_behind_a_pbs_profile_is_recognised_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands(tmp_path, "sbatch", "squeue", "scancel", "scontrol", "qsub", "qstat")
    (tmp_path / "site.yaml").write_text("scheduler: {kind: pbs}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    scheduler, (finding,) = examine.chosen_scheduler()
    assert scheduler.kind == "slurm"
    assert "this host has sbatch: Slurm is used" in finding.what
    assert "profiles/slurm" in finding.remedy


def test_commands_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.yaml").write_text("scheduler: {kind: slurm}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SCALESTUDY_SITE", str(tmp_path / "site.yaml"))
    scheduler, (finding,) = examine.chosen_scheduler()
    assert scheduler is None
    assert "sbatch" in finding.what


@pytest.mark.slow
def test_this_machine_is_probed_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)
    (tmp_path / "token").write_text("abc")
    found = probe(tmp_path, "abc")
    assert found["shared"] is True
    assert abs(found["skew_s"]) < 1
    assert found["torch"]["version"]
    assert found["scratch"]["free_gib"] > 0
