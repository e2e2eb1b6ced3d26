"""What a cluster is, read from its scheduler; held against a machine and a site file; and written as such files."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.doctor import write
from scalestudy.cluster.doctor.facts import (
    ClusterFacts,
    NodeFacts,
    NodeKind,
    QueueFacts,
    facts_of,
    mebibytes,
    minutes,
)
from scalestudy.cluster.doctor.findings import differences
from scalestudy.errors import UserError
from scalestudy.spec.config import Site, checked, read_machine
from scalestudy.spec.machine import Machine
from scalestudy.spec.yamlfile import read_yaml
from snakemake_executor_plugin_multinode.schedulers import Request, scheduler_of
from snakemake_executor_plugin_multinode.site import SchedulerSettings
from tests.unit.cluster.recorded_sites import PBS, SGE, SLURM, Recorded

ROOT = Path(__file__).resolve().parents[3]
MACHINE, SITE = "config/machines/mine.yaml", "profiles/mine/site.yaml"


def slurm() -> ClusterFacts:
    return facts_of("slurm", Recorded(SLURM))


def test_slurms_nodes_partitions_accounts_and_limits_are_read() -> None:
    found = slurm()
    a100 = NodeKind(32, 256000, 4, "a100")
    assert found.nodes[0] == NodeFacts("n1", a100, True, ("gpu", "all"))
    assert [node.up for node in found.nodes] == [True, True, False, True]
    assert found.kind_of("gpu") == a100
    assert found.kind_of("cpu") == NodeKind(32, 256000, 0)
    assert found.queues == (
        QueueFacts("gpu", True, 2160.0, 2, 20),
        QueueFacts("cpu", False, 2880.0, None, 20),
    )
    assert (found.accounts, found.most_submitted, found.notes) == (("physics", "lab"), 40, ())


def test_pbs_adds_the_vnodes_of_a_host_and_shows_queues_that_take_jobs() -> None:
    found = facts_of("pbs", Recorded(PBS))
    assert found.nodes == (
        NodeFacts("a1", NodeKind(40, 385023, 4), True),
        NodeFacts("a2", NodeKind(40, 385024, 4), False),
    )
    assert found.queues == (QueueFacts("workq", True, 1440.0, 8, 4),)
    assert (found.most_submitted, found.gpu_resource) == (30, "ngpus")


def test_grid_engines_hosts_environments_and_complexes_are_read() -> None:
    found = facts_of("sge", Recorded(SGE))
    assert found.nodes == (
        NodeFacts("h1", NodeKind(28, 257638, 4), True),
        NodeFacts("h2", NodeKind(28, 257638, 4), False),
    )
    assert found.queues == (QueueFacts("all.q", walltime_min=1440.0),)
    assert found.environments == {"make": "$round_robin", "mpi": "$fill_up", "mpi4": "4"}
    assert (found.most_submitted, found.gpu_resource, found.exclusive_resource) == (30, "gpu", "exclusive")


@pytest.mark.parametrize("kind", ["slurm", "pbs", "sge"])
def test_a_scheduler_that_gives_no_answer_is_quoted_and_nothing_is_made_up(kind: str) -> None:
    found = facts_of(kind, Recorded({}))
    assert found.nodes == () and found.queues == ()
    assert any("not recorded" in note for note in found.notes)


def test_times_and_sizes_of_all_systems() -> None:
    assert [minutes(text, 1.0) for text in ("1-12:00:00", "36:30:00", "90", "2-12", "UNLIMITED", "INFINITY")] == [
        2160.0, 2190.0, 90.0, 3600.0, None, None,
    ]  # fmt: skip
    assert minutes("3600", 1 / 60) == pytest.approx(60)
    assert [mebibytes(text) for text in ("4000M", "395gb", "1048576kb", "15.6G", "1048576b", "-")] == [
        4000, 404480, 1024, 15974, 1, None,
    ]  # fmt: skip


def said(machine: Machine, facts: ClusterFacts, **settings: Any) -> list[tuple[str, str]]:
    found = differences(machine, MACHINE, SchedulerSettings(kind=facts.system, **settings), SITE, facts)
    return [(finding.what, finding.remedy) for finding in found if finding.remedy]


def right(**changes: Any) -> Machine:
    """A machine file that agrees with the recorded Slurm."""
    values: dict[str, Any] = {
        "nodes": 2, "devices_per_node": 4, "cores_per_node": 32, "memory_gib": 250.0, "walltime_limit_h": 36.0,
        "limits": {"most_jobs": 40, "most_nodes": 2},
    }  # fmt: skip
    return Machine.model_validate({**values, **changes})


@pytest.mark.parametrize(
    ("changes", "settings", "what", "remedy"),
    [
        ({"nodes": 9}, {}, f"{MACHINE}: `nodes: 9`, and Slurm has 3 nodes in gpu", "set `nodes: 3`"),
        ({"cores_per_node": 64}, {}, f"{MACHINE}: `cores_per_node: 64`, and a node in gpu has 32 by Slurm", "jobs would never run"),
        ({"devices_per_node": 8}, {}, f"{MACHINE}: `devices_per_node: 8`, and a node in gpu has 4 GPUs", "set `devices_per_node: 4`"),
        ({"memory_gib": 512.0}, {}, f"{MACHINE}: each job asks for 471,859 MiB per node, and a node in gpu has 256,000", "set `memory_gib: 250`"),
        ({"walltime_limit_h": 100.0}, {}, f"{MACHINE}: `walltime_limit_h` is 100, and a job in gpu has at most 36 hours", "set `walltime_limit_h: 36`"),
        ({"limits": {"most_jobs": 100, "most_nodes": 2}}, {}, f"{MACHINE}: `limits.most_jobs` is 100, and Slurm lets a user have 40", "set `limits.most_jobs: 40`"),
        ({"limits": {"most_jobs": 40}, "nodes": 3}, {}, f"{MACHINE}: a job in gpu may have at most 2 nodes", "set `limits.most_nodes: 2`"),
        ({"queues": {"gpu": {}}, "nodes": 9}, {}, f"{MACHINE}: `nodes: 9`, and Slurm has 3 nodes in its queues", "set `nodes: 3`"),
        ({"hosts": ["n1", "gone[1-9]"]}, {}, f"{MACHINE}: `hosts` names gone1, gone2, gone3, gone4, gone5, which Slurm does not have", "doctor --hosts"),
        ({}, {"queue": "gpus"}, f"{SITE}: `scheduler.queue`: Slurm has no open queue `gpus`", "did you mean `gpu`?"),
        ({}, {"account": "phisics"}, f"{SITE}: `scheduler.account: phisics` is not among your accounts", "did you mean `physics`?"),
    ],
)  # fmt: skip
def test_what_differs_is_said_with_the_file_that_is_wrong(
    changes: dict[str, Any], settings: dict[str, Any], what: str, remedy: str
) -> None:
    found = said(right(**changes), slurm(), **{"queue": "gpu", **settings})
    assert [first for first, second in found if what in first and remedy in second] != [], found
    for _, second in found:
        changes, settings = followed(second, changes, settings)
    assert said(right(**changes), slurm(), **{"queue": "gpu", **settings}) == []


def followed(remedy: str, changes: dict[str, Any], settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A machine's changes and a site's settings with the value that a remedy states in place of the wrong one."""
    if name := re.match("did you mean `(.+)`", remedy):
        return changes, {**settings, next(iter(settings)): name[1]}
    if "doctor --hosts" in remedy:
        return {**changes, "hosts": [node.name for node in slurm().nodes]}, settings
    advised = re.search(r"set `([a-z_.]+): ([0-9.]+)` there", remedy)
    assert advised is not None, remedy
    group, _, key = advised[1].rpartition(".")
    new = {key: json.loads(advised[2])}
    return {**changes, **({group: {**changes[group], **new}} if group else new)}, settings


def report(**changes: Any) -> dict[str, Any]:
    """What a node of the recorded Slurm says of itself."""
    torch = {"version": "2.14.1+cu130", "devices": 4, "device_name": "NVIDIA A100-SXM4-40GB", "memory_gib": 39.4}
    return {"host": "n1", "node_cores": 32, "torch": torch, **changes}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where files can be written."""
    (tmp_path / "config/machines").mkdir(parents=True)
    (tmp_path / "config/reference").symlink_to(ROOT / "config/reference")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOADEDMODULES", raising=False)
    return tmp_path


@pytest.mark.parametrize(("kind", "answers"), [("slurm", SLURM), ("pbs", PBS), ("sge", SGE)])
def test_what_is_written_is_read_again_and_agrees_with_the_scheduler_that_it_came_from(
    kind: str, answers: dict[str, str], project: Path
) -> None:
    facts = facts_of(kind, Recorded(answers))
    write.write_files("mine", facts, report())
    machine = read_machine("mine")
    site = checked(Site, read_yaml("profiles/mine/site.yaml"))
    settings = scheduler_of(site.scheduler).settings
    assert machine.devices_per_node == 4
    assert settings.kind == kind
    wrong = [f for f in differences(machine, MACHINE, settings, SITE, facts) if f.remedy]
    assert wrong == []
    assert read_yaml("profiles/mine/where.yaml").data == {
        "machine": "mine", "scale": "paper", "site": "profiles/mine/site.yaml",
    }  # fmt: skip
    profile = read_yaml("profiles/mine/config.yaml").data
    assert profile["executor"] == "multinode" and profile["multinode-site"] == "profiles/mine/site.yaml"


def test_a_machine_file_has_what_scheduler_and_node_say_with_its_source(project: Path) -> None:
    write.write_files("mine", slurm(), report())
    machine = read_machine("mine")
    assert (machine.nodes, machine.cores_per_node, machine.memory_gib) == (3, 32, 250.0)
    assert (machine.device, machine.device_name, machine.device_memory_gib) == ("cuda", "NVIDIA A100-SXM4-40GB", 39.4)
    assert machine.accelerator == "a100"
    assert machine.limits.most_jobs == 40
    gpu, cpu = machine.queues["gpu"], machine.queues["cpu"]
    assert list(machine.queues) == ["gpu", "cpu"]
    assert (gpu.walltime_limit_h, gpu.most_nodes, gpu.most_jobs, gpu.devices_per_node) == (36, 2, 20, None)
    assert (cpu.walltime_limit_h, cpu.most_nodes, cpu.devices_per_node) == (48, 1, 0)
    assert machine.sources["nodes"] == "scontrol show node"
    assert machine.host_names == tuple(node.name for node in slurm().nodes_of("gpu"))
    site = read_yaml("profiles/mine/site.yaml").data
    assert site["scheduler"]["account"] == "physics"
    assert read_yaml("profiles/mine/config.yaml").data["jobs"] == 40


def test_of_a_single_queue_the_limits_are_those_of_the_machine(project: Path) -> None:
    write.write_files("mine", facts_of("pbs", Recorded(PBS)), None)
    machine = read_machine("mine")
    assert (machine.walltime_limit_h, machine.limits.most_nodes, machine.limits.most_jobs) == (24, 8, 30)
    assert machine.queues == {}
    request = read_yaml("profiles/mine/site.yaml").data["scheduler"]["request"]
    assert request.startswith(
        "-l select={nodes}:ncpus={cpus_per_node}:mpiprocs={ranks_per_node}[:ngpus={gpus_per_node}]"
    )


@pytest.mark.parametrize(
    ("node", "device"),
    [
        ({"torch": {"version": "2.14.1", "devices": 0}}, "cpu"),
        ({"torch": {"error": "No module named 'torch'"}}, "cuda"),
        ({"torch": {"version": "2.14.1", "devices": 0}, "gpu": {"devices": 4, "capability": [7, 0]}}, "cuda"),
    ],
)
def test_a_person_is_asked_about_gpus_that_torch_does_not_see(node: dict[str, Any], device: str, project: Path) -> None:
    files = write.write_files("mine", slurm(), report(**node))
    assert read_machine("mine").device == device
    lines = write.to_correct(files)
    assert any(f'device: "{device}"' in line and "n1 shows torch no GPU" in line for line in lines)
    assert any("or lab" in line for line in lines)


def test_grid_engine_takes_the_environment_that_gives_whole_nodes(project: Path) -> None:
    write.write_files("mine", facts_of("sge", Recorded(SGE)), None)
    scheduler = scheduler_of(read_yaml("profiles/mine/site.yaml").data["scheduler"])

    def words(nodes: int, ranks: int) -> list[str]:
        request = Request("run", Path("/job.sh"), Path("/job.log"), nodes, ranks, 4, 1, 1000, 10, None)
        command = scheduler.submit_command(request)
        begin = command.index("-pe")
        return command[begin : begin + 3]

    assert words(2, 4) == ["-pe", "mpi4", "8"]  # four to a host
    assert words(1, 2) == ["-pe", "mpi", "2"]  # no environment deals two


def test_grid_engine_without_an_environment_for_any_number_names_the_missing_one() -> None:
    settings = {"kind": "sge", "request": "[-pe {environment} {ranks}]", "environments": {"4": "mpi4"}}
    scheduler = scheduler_of(settings)
    one = Request("run", Path("/job.sh"), Path("/job.log"), 1, 1, 0, 1, 1000, 10, None)
    assert "-pe" not in scheduler.submit_command(one)
    with pytest.raises(ValueError, match=r"deals 2 slots to a host; add it to `scheduler\.environments` .* 4: mpi4"):
        scheduler.submit_command(dataclasses.replace(one, ranks_per_node=2))


def test_files_that_are_there_are_left_alone(project: Path) -> None:
    (project / MACHINE).write_text("description: mine, corrected\n")
    with pytest.raises(UserError, match=r"is there already: config/machines/mine\.yaml"):
        write.refuse_existing("mine")
