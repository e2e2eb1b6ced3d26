"""What a plan counts: chains, unknown times, prices, and sums that agree."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from scalestudy.cluster import costs, show
from scalestudy.cluster.plan import Plan, Seen, make_plan, over_budget
from scalestudy.dag.project import Project
from scalestudy.spec.layout import result_file

ROOT = Path(__file__).resolve().parents[3]
STUDY = """\
question: What does it cost?
base:
  model: resnet50
  data: {source: image_folder}
  batch: {per_rank: 32}
  train: {epochs: 90}
vary: {strategy: [allreduce, halving_doubling], ranks: [1, 8]}
repeats: 2
"""
MACHINE = """\
nodes: 16
devices_per_node: 4
device: cuda
cores_per_node: 28
memory_gib: 256
walltime_limit_h: 24
prices: {currency: points, per_device_hour: 0.3, per_node_hour: 1}
"""
IDLE_H = Decimal("10.8")
"""GPU hours that stand idle while one node of four GPUs indexes the data for 162 minutes."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one study and two machines: one whose accelerator has published step times, one without."""
    for part in ("studies", "machines"):
        (tmp_path / "config" / part).mkdir(parents=True)
    (tmp_path / "config/reference").symlink_to(ROOT / "config/reference")
    (tmp_path / "config/studies/long.yaml").write_text(STUDY)
    (tmp_path / "config/machines/known.yaml").write_text(MACHINE + "accelerator: p100\n")
    (tmp_path / "config/machines/unknown.yaml").write_text(MACHINE)
    (tmp_path / "config/config.yaml").write_text("scale: paper\n")
    monkeypatch.chdir(tmp_path)
    costs.table.cache_clear()
    costs._prepared.cache_clear()
    return tmp_path


def planned(machine: str) -> Plan:
    """The plan of everything, as if a dry run had announced each run and its dataset."""
    project = Project({"machine": machine})
    study = project.chosen[0]
    dataset = study.runs[0].dataset
    manifest = f"results/data/{dataset}/manifest.json"
    seen = [Seen(0, "dataset", {"dataset": dataset}, (), (manifest,), {}, 2_000_000)]
    for number, run in enumerate(study.runs):
        wildcards = {"machine": machine, "run": run.id}
        out = str(result_file(machine, run.id))
        seen.append(Seen(number + 1, "train", wildcards, (manifest,), (out,), {"study": study.name}, 1_000_000))
    return make_plan(project, seen)


def test_a_run_longer_than_a_job_may_be_is_a_chain_with_each_link_in_view(folder: Path) -> None:
    data = show.as_json(planned("known"), {})
    chained = [job for job in data["jobs"] if len(job.get("links", ())) > 1]
    assert chained
    for job in chained:
        assert [link["link"] for link in job["links"]] == list(range(1, len(job["links"]) + 1))
        assert all(link["runtime"] <= 24 * 60 for link in job["links"])
    assert "Chains" in show.table(planned("known"))


def test_an_unknown_time_is_bounded_by_what_is_asked_for(folder: Path) -> None:
    total = show.as_json(planned("unknown"), {})["total"]
    assert total["gpu_hours_expected"] == {"low": 0, "high": total["gpu_hours_requested"], "kind": "unknown"}
    assert total["gpu_hours_requested"] == float(4 * (4 + 8) * 24 + IDLE_H)


def test_the_cost_is_that_of_devices_and_nodes_exactly(folder: Path) -> None:
    plan = planned("unknown")
    nodes_hours = Decimal(4 * (1 + 2) * 24) + plan.hours(plan.rows[0].amounts.node[0])
    assert plan.rows[0].study == "data"
    cost = plan.cost(plan.total)
    assert cost is not None
    assert cost[0] == Decimal("0.3") * (1152 + IDLE_H) + nodes_hours


def test_csv_and_json_say_the_same_as_the_total(folder: Path) -> None:
    plan = planned("known")
    lines = show.as_csv(plan).splitlines()
    column = lines[0].split(",").index("gpu_hours_requested")
    total = json.loads(json.dumps(show.as_json(plan, {})))["total"]["gpu_hours_requested"]
    assert sum(Decimal(line.split(",")[column]) for line in lines[1:]) == Decimal(str(total))


def test_runs_wait_for_their_data_and_the_rest_runs_side_by_side(folder: Path) -> None:
    plan = planned("unknown")
    data_s = plan.jobs[0].seconds[0]
    assert plan.critical_s[0] == data_s + 24 * 3600
    assert plan.makespan_s[0] == data_s + 24 * 3600  # 12 of 16 nodes


def test_the_budget_is_compared_with_what_is_asked_for(folder: Path) -> None:
    plan = planned("unknown")
    assert over_budget(plan, 1162.79)
    assert not over_budget(plan, 1162.8)


def test_a_budget_in_the_configuration_is_passed_to_the_executor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from snakemake_executor_plugin_scalestudy.executor import budget

    monkeypatch.setenv("SCALESTUDY_BUDGET_GPU_HOURS", "1")
    (folder / "config/config.yaml").write_text("scale: paper\nbudget_gpu_hours: 500\n")
    monkeypatch.setenv(
        *next(
            iter(set(Project({"machine": "known"}).environment().items()) & {("SCALESTUDY_BUDGET_GPU_HOURS", "500.0")})
        )
    )
    assert budget(None) == 500
    assert budget(200.0) == 200
    assert budget(900.0) == 500


def test_idle_devices_of_nodes_taken_whole_for_data_are_counted_in_plan_and_budget(folder: Path) -> None:
    plan = planned("unknown")
    data = plan.rows[0]
    assert data.study == "data"
    assert plan.hours(data.amounts.gpu[0]) == 4 * plan.hours(data.amounts.node[0]) > 0
    assert over_budget(plan, 4 * (4 + 8) * 24)
