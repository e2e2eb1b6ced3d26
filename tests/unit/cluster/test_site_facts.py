"""What a cluster is, read from its scheduler; and held against a machine and a site file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.doctor.facts import (
    ClusterFacts,
    NodeFacts,
    NodeKind,
    QueueFacts,
    facts_of,
)
from scalestudy.cluster.doctor.findings import differences
from scalestudy.spec.machine import Machine
from snakemake_executor_plugin_multinode.schedulers import Request, scheduler_of
from snakemake_executor_plugin_multinode.site import SchedulerSettings
from tests.unit.cluster.recorded_sites import PBS, SGE, SLURM, Recorded

MACHINE, SITE = "config/machines/mine.yaml", "profiles/mine/site.yaml"


def slurm() -> ClusterFacts:
    return facts_of("slurm", Recorded(SLURM))


def test_slurms_nodes_and_partitions_are_read() -> None:
    found = slurm()
    a100 = NodeKind(32, 256000, 4)
    assert found.nodes[0] == NodeFacts("n1", a100, ("gpu", "all"))
    assert [node.kind for node in found.nodes_of("cpu")] == [NodeKind(32, 256000, 0)]
    assert found.queues == (
        QueueFacts("gpu", True, 2160.0, 2),
        QueueFacts("cpu", False, 2880.0, None),
    )
    assert found.notes == ()


SOCKETS = "RealMemory=1000 Sockets=1 CoresPerSocket=64 ThreadsPerCore={} CPUTot={} State=IDLE"


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ("Gres=gpu:3090:4(S:0-1)", NodeKind(None, None, 4)),
        ("Gres=gpu:2080ti:8", NodeKind(None, None, 8)),
        ("Gres=gpu:4,license:2", NodeKind(None, None, 4)),
        ("Gres=gpu:a100:2(S:0,1),gpu:1g.10gb:7(S:0),shard:9", NodeKind(None, None, 9)),
        ("Gres=gpu:tesla:no_consume:2", NodeKind(None, None, 2)),
        (f"{SOCKETS.format(1, 64)} CPUEfctv=56 CoreSpecCount=8", NodeKind(56, 1000, 0)),
        (f"{SOCKETS.format(2, 128)} CPUEfctv=120 MemSpecLimit=100", NodeKind(60, 900, 0)),
        (SOCKETS.format(2, 128), NodeKind(64, 1000, 0)),
        (f"{SOCKETS.format(2, 64)} CPUEfctv=64", NodeKind(64, 1000, 0)),  # cores are scheduled, not threads
    ],
)
def test_of_slurms_record_of_a_node_counts_what_a_job_may_have(record: str, kind: NodeKind) -> None:
    found = facts_of("slurm", Recorded({"scontrol -o show node": f"NodeName=n1 {record}"}))
    assert found.nodes[0].kind == kind


def test_an_answer_of_pbs_that_is_no_json_is_quoted() -> None:
    found = facts_of("pbs", Recorded({"pbsnodes -a -F json": '{"nodes":{"a1":{"comment":"drained by "ops" today"}}}'}))
    assert found.nodes == ()
    assert "`pbsnodes -a -F json` is no JSON (Expecting ',' delimiter: line 1 column 40 (char 39))" in found.notes[0]


def test_pbs_adds_the_vnodes_of_a_host_and_shows_queues_that_take_jobs() -> None:
    found = facts_of("pbs", Recorded(PBS))
    assert found.nodes == (
        NodeFacts("a1", NodeKind(40, 385023, 4)),
        NodeFacts("a2", NodeKind(40, 385024, 4)),
    )
    assert found.queues == (QueueFacts("workq", True, 1440.0, 8), QueueFacts("router"))


def test_grid_engines_hosts_and_queues_are_read() -> None:
    found = facts_of("sge", Recorded(SGE))
    assert found.nodes == (
        NodeFacts("h1", NodeKind(28, 257638, 4)),
        NodeFacts("h2", NodeKind(28, 257638, 4)),
    )
    assert found.queues == (QueueFacts("all.q", walltime_min=1440.0),)


@pytest.mark.parametrize("kind", ["slurm", "pbs", "sge"])
def test_a_scheduler_that_gives_no_answer_is_quoted_and_nothing_is_made_up(kind: str) -> None:
    found = facts_of(kind, Recorded({}))
    assert found.nodes == () and found.queues == ()
    assert any("not recorded" in note for note in found.notes)


def said(machine: Machine, facts: ClusterFacts, **settings: Any) -> list[tuple[str, str]]:
    found = differences(machine, MACHINE, SchedulerSettings(kind=facts.system, **settings), SITE, facts)
    return [(finding.what, finding.remedy) for finding in found if finding.remedy]


def right(**changes: Any) -> Machine:
    """A machine file that agrees with the recorded Slurm."""
    values: dict[str, Any] = {
        "nodes": 2, "devices_per_node": 4, "cores_per_node": 32, "memory_gib": 250.0, "walltime_limit_h": 36.0,
        "limits": {"most_nodes": 2},
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
        ({"limits": {}, "nodes": 3}, {}, f"{MACHINE}: a job in gpu may have at most 2 nodes", "set `limits.most_nodes: 2`"),
        ({"queues": {"gpu": {}}, "nodes": 9}, {}, f"{MACHINE}: `nodes: 9`, and Slurm has 3 nodes in its queues", "set `nodes: 3`"),
        ({"hosts": ["n1", "gone[1-9]"]}, {}, f"{MACHINE}: `hosts` names gone1, gone2, gone3, gone4, gone5, which Slurm does not have", "as Slurm writes them"),
        ({}, {"queue": "gpus"}, f"{SITE}: `scheduler.queue`: Slurm has no open queue `gpus`", "did you mean `gpu`?"),
    ],
)  # fmt: skip
def test_what_differs_is_said_with_the_file_that_is_wrong(
    changes: dict[str, Any], settings: dict[str, Any], what: str, remedy: str
) -> None:
    found = said(right(**changes), slurm(), **{"queue": "gpu", **settings})
    assert [first for first, second in found if what in first and remedy in second] != [], found


@pytest.mark.parametrize("queue", ["gpu", "gpu,cpu", "gpu@@a100"])
def test_other_nodes_beside_those_of_the_file_and_lists_of_queues_are_no_difference(queue: str) -> None:
    facts = slurm()
    others = tuple(NodeFacts(f"c{number}", NodeKind(16, 128_000, 0), ("gpu",)) for number in range(9))
    assert said(right(), dataclasses.replace(facts, nodes=(*others, *facts.nodes)), queue=queue) == []


def test_gpus_that_pbs_does_not_count_are_no_difference() -> None:
    nodes = tuple(NodeFacts(f"n{number}", NodeKind(32, 256_000, 0)) for number in range(2))
    facts = ClusterFacts("pbs", nodes, (QueueFacts("small", True, 2160.0, 2),))
    assert said(right(), facts, queue="small") == []


def test_grid_engine_without_an_environment_for_any_number_names_the_missing_one() -> None:
    settings = {"kind": "sge", "request": "[-pe {environment} {ranks}]", "environments": {"4": "mpi4"}}
    scheduler = scheduler_of(settings)
    one = Request("run", Path("/job.sh"), Path("/job.log"), 1, 1, 0, 1, 1000, 10, None)
    assert "-pe" not in scheduler.submit_command(one)
    with pytest.raises(ValueError, match=r"deals 2 slots to a host; add it to `scheduler\.environments` .* 4: mpi4"):
        scheduler.submit_command(dataclasses.replace(one, ranks_per_node=2))
