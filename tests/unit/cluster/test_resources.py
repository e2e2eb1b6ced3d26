"""What a run asks its scheduler for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scalestudy.cluster.plan.expected import TimeEstimate
from scalestudy.cluster.resources import (
    Planner,
    Resources,
    cpus_per_rank,
    of_dataset,
    of_run,
    queue_for,
    refuse_caps,
    walltime,
)
from scalestudy.errors import UserError
from scalestudy.spec.base import parse
from scalestudy.spec.ids import configuration_id, dataset_id, run_id
from scalestudy.spec.machine import Machine, Queue, geometry, machine_problems
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Run

FOUR = Machine(nodes=16, devices_per_node=4, device="cuda", cores_per_node=28, memory_gib=256, walltime_limit_h=24)
KNOWN = TimeEstimate(100.0, 200.0, "published")


def spec(**keys: Any) -> RunSpec:
    found, problems = parse(RunSpec, {"strategy": {"name": "allreduce"}, "data": {"source": "digits"}, **keys})
    assert found is not None, problems
    return found


def run(**keys: Any) -> Run:
    made = spec(**keys)
    return Run(run_id(made), made, configuration_id(made), dataset_id(made.data))


def prepared_on(machine: Machine) -> Resources:
    return Planner("nowhere", machine).of_dataset("digits", spec())[0]


@pytest.mark.parametrize(("ranks", "nodes", "per_node"), [(3, 1, 3), (6, 2, 3), (7, 7, 1), (64, 16, 4)])
def test_ranks_are_shared_equally_by_the_fewest_nodes(ranks: int, nodes: int, per_node: int) -> None:
    assert geometry(spec(ranks=ranks), FOUR) == (nodes, per_node)


def test_what_the_study_says_about_nodes_holds_and_without_devices_all_ranks_are_on_one() -> None:
    assert geometry(spec(ranks=8, nodes=4), FOUR) == (4, 2)
    assert geometry(spec(ranks=8, ranks_per_node=1), FOUR) == (8, 1)
    assert geometry(spec(ranks=8), Machine()) == (1, 8)
    assert geometry(spec(ranks=8), FOUR.model_copy(update={"device": "cpu"})) == (1, 8)
    assert geometry(spec(ranks=32, device="emulated:p100"), Machine(nodes=2, devices_per_node=4)) == (2, 16)


def test_a_rank_has_the_same_cores_whether_or_not_its_node_is_full_and_servers_count() -> None:
    def cores(ranks: int, **keys: Any) -> int:
        run_spec = spec(ranks=ranks, **keys)
        return cpus_per_rank(run_spec, FOUR, *geometry(run_spec, FOUR))

    assert [cores(ranks) for ranks in (1, 4, 8)] == [7, 7, 7]
    assert cores(1, strategy={"name": "parameter_server", "servers": 1}) == 14
    assert cores(4, strategy={"name": "parameter_server", "servers": 2}) == 7  # the node has no more


@pytest.mark.parametrize(
    ("high_s", "limit_min", "asked"),
    [
        (3661, 1440, (72, 1)),
        (23.9 * 3600, 1440, (1440, 1)),
        (30 * 3600, 1440, (906, 2)),  # a chain of about equal links
        (math.inf, 1440, (30, 1)),  # unknown: a short job tells
        (math.inf, 12, (12, 1)),
    ],
)
def test_the_walltime_is_the_95th_percentile_and_five_minutes_rounded_up_to_six(
    high_s: float, limit_min: int | None, asked: tuple[int, int]
) -> None:
    assert walltime(TimeEstimate(0, high_s, "flops" if high_s < math.inf else "unknown"), limit_min) == asked


def test_the_first_queue_that_fits_is_taken_else_the_one_with_the_longest_jobs() -> None:
    machine = Machine(
        queues={
            "debug": Queue(most_nodes=2, walltime_limit_h=1),
            "small": Queue(most_nodes=8, walltime_limit_h=24),
            "large": Queue(least_nodes=9),
        }
    )
    assert queue_for(machine, 1, TimeEstimate(0, 600, "flops")) == "debug"
    assert queue_for(machine, 1, TimeEstimate(0, 7200, "flops")) == "small"
    assert queue_for(machine, 2, TimeEstimate(0, 10**6, "flops")) == "small"
    assert queue_for(machine, 12, TimeEstimate(0, 600, "flops")) == "large"
    assert queue_for(Machine(), 12, TimeEstimate(0, 600, "flops")) is None


def test_a_cap_that_would_make_runs_smaller_is_refused_and_one_on_what_runs_together_is_not() -> None:
    for name in ("nodes", "gpus_per_node", "mem_mb", "runtime"):
        with pytest.raises(UserError, match=f"a cap on `{name}` would change the runs"):
            refuse_caps({name: 1})
    refuse_caps({"measure": 1, "_nodes": 100})


def test_more_nodes_than_any_queue_has_is_refused_before_anything_is_submitted() -> None:
    machine = Machine(nodes=100, devices_per_node=4, queues={"small": Queue(most_nodes=8)})
    assert [problem.what for problem in machine_problems(spec(ranks=64), machine, "mine")] == [
        "64 ranks need 16 nodes; machine `mine` has 8"
    ]


def test_nodes_of_an_emulated_network_are_on_one_host_and_on_any_machine() -> None:
    emulated = {"ranks_per_node": 1, "device": "emulated:infinite", "network": {"mib_per_s": 32}}
    machine = Machine(nodes=2, devices_per_node=4)
    assert [*machine_problems(spec(ranks=4, **emulated), machine, "mine")] == []
    assert [*machine_problems(spec(ranks=4, **emulated | {"network": None}), machine, "mine")] != []


def test_data_preparation_on_a_node_taken_whole_holds_its_idle_devices() -> None:
    prepared = prepared_on(FOUR)
    assert (prepared.gpus_per_node, prepared.gpus_held_per_node, prepared.gpus_held) == (0, 4, 4)
    assert prepared_on(FOUR.model_copy(update={"exclusive": False})).gpus_held == 0
    assert prepared_on(Machine(job_memory_gib=100)).gpus_held == 0
    assert prepared_on(Machine(job_memory_gib=100)).mem_mb == 102400


def test_preparation_that_takes_longer_than_a_job_asks_for_the_longest() -> None:
    hours = TimeEstimate(7 * 3600.0, 7.4 * 3600.0, "published")
    assert of_dataset(FOUR.model_copy(update={"walltime_limit_h": 6.0}), hours).runtime == 360


def test_jobs_without_accelerator_go_to_a_queue_of_cpu_nodes_and_runs_never_do() -> None:
    queues = {"gpu": Queue(devices_per_node=8), "cpu": Queue(devices_per_node=0)}
    machine = FOUR.model_copy(update={"queues": queues})
    prepared = prepared_on(machine)
    assert (prepared.queue, prepared.gpus_held) == ("cpu", 0)
    # Nodes without accelerators may have fewer cores and less memory than those of the machine.
    assert (prepared.cpus_per_rank, prepared.mem_mb) == (16, 65536)
    assert (prepared_on(FOUR).cpus_per_rank, prepared_on(FOUR).mem_mb) == (28, 235929)
    first = FOUR.model_copy(update={"queues": dict(reversed(queues.items()))})
    asked = of_run(run(ranks=1), first, KNOWN)
    assert (asked.queue, asked.gpus_per_node, asked.gpus_held, asked.mem_mb) == ("gpu", 4, 8, 235929)
