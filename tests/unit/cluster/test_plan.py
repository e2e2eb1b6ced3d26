"""What a plan counts: chains, unknown times, prices, and sums that agree."""

from __future__ import annotations

import csv
import dataclasses
import json
from datetime import date
from pathlib import Path

import pytest

from scalestudy.cluster.plan import costs, show, spread
from scalestudy.cluster.plan.planned import AnnouncedJob, Plan, PlannedJob, make_plan, over_budget
from scalestudy.cluster.plan.proposal import proposal
from scalestudy.commands.cluster import groups_of
from scalestudy.dag.project import Project
from scalestudy.errors import UserError
from scalestudy.spec.layout import result_file
from snakemake_executor_plugin_multinode.resources import request_of

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
IDLE_H = 8.0
"""GPU hours that stand idle while one node of four GPUs indexes the data for 120 minutes."""


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
    return plan_of(Project({"machine": machine}), machine)


def plan_of(project: Project, machine: str, *, backwards: bool = False) -> Plan:
    study = project.chosen[0]
    dataset = study.runs[0].dataset
    manifest = f"results/data/{dataset}/manifest.json"
    seen = [AnnouncedJob(0, "dataset", {"dataset": dataset}, (), (manifest,), {}, 2_000_000)]
    for number, run in enumerate(study.runs):
        wildcards = {"machine": machine, "run": run.id}
        out = str(result_file(machine, run.id))
        seen.append(AnnouncedJob(number + 1, "train", wildcards, (manifest,), (out,), {"study": study.name}, 1_000_000))
    return make_plan(project, seen[::-1] if backwards else seen)


def runs_of(plan: Plan) -> list[PlannedJob]:
    return [job for job in plan.submitted if job.seen.rule == "train"]


def details(plan: Plan) -> str:
    return show.table(plan, details=True)


def test_a_run_longer_than_a_job_may_be_is_a_chain_with_each_attempt_in_view(folder: Path) -> None:
    plan = planned("known")
    chained = [job for job in show.as_json(plan, {})["jobs"] if job["submitted"] and job["attempts"] > 1]
    assert chained
    assert all(job["resources"]["runtime"] <= 24 * 60 for job in chained)
    assert f"Chain        {chained[0]['name']}: {chained[0]['attempts']} jobs of" in details(plan)


def test_a_run_without_an_estimate_is_in_no_percentile_and_counts_with_its_reservation(folder: Path) -> None:
    plan = planned("unknown")
    assert plan.hours(runs_of(plan), "gpu") == (0, 0, 0)
    assert plan.reserved(runs_of(plan), "gpu") == plan.to_request(runs_of(plan), "gpu") == 24
    assert show.as_json(plan, {})["unknown"] == {"jobs": 8, "gpu_hours_reserved": 24}
    text = show.table(plan)
    assert "Unknown      8 jobs without an estimate: their 24 reserved GPU h are in what is to be requested" in text
    assert [line.split()[2] for line in text.splitlines() if line.startswith("long ")] == ["–"]
    assert plan.makespan_s[0] >= 1800  # its whole walltime


def test_preparing_data_is_expected_between_the_assumed_and_the_measured_rate(folder: Path) -> None:
    data, *_ = show.as_json(planned("unknown"), {})["jobs"]
    assert data["source"] == "rates"
    assert 0.0356 < data["gpu_hours_p10"] < data["gpu_hours_expected"] < data["gpu_hours_to_request"] < 7.5289


def test_a_run_that_goes_on_in_further_jobs_starts_again_in_each(folder: Path) -> None:
    def hours(start_up_s: int) -> tuple[float, float]:
        (folder / "config/machines/known.yaml").write_text(f"{MACHINE}accelerator: p100\nstart_up_s: {start_up_s}\n")
        plan = planned("known")
        (longest,) = [job for job in plan.submitted if job.ranks == 1 and job.strategy == "allreduce"][:1]
        assert longest.resources.links > 2
        return plan.hours([longest], "node")[1], plan.makespan_s[1]

    (fast_h, fast_s), (slow_h, slow_s) = hours(1), hours(3001)
    assert slow_h - fast_h > 3000 / 3600 * 2
    assert slow_s - fast_s > 2 * 3000


def test_all_runs_of_unknown_time_are_requested_as_the_driver_requests_them(folder: Path) -> None:
    plan = planned("unknown")
    assert {job.resources.runtime for job in runs_of(plan)} == {30}
    requests = [request_of(job.resources.plain(), 1, "a", Path("/a.sh"), Path("/a.log")) for job in plan.submitted]
    assert plan.reserved(plan.submitted, "gpu") == sum(request.gpu_hours or 0 for request in requests)
    assert plan.reserved(runs_of(plan), "gpu") == (4 + 8) * 4 * 0.5


def test_the_percentiles_of_a_sum_lie_below_the_reservations_and_are_the_same_each_time(folder: Path) -> None:
    plan = planned("known")
    low, middle, high = plan.hours(plan.submitted, "gpu")
    assert 0 < low < middle < high < plan.reserved(plan.submitted, "gpu")
    assert planned("known").hours(plan.submitted, "gpu") == (low, middle, high)


def test_runs_whose_errors_are_their_own_make_a_sum_more_certain_than_those_of_one_source() -> None:
    def width(kind: str) -> float:
        totals = spread.drawn([(kind, 50.0, 200.0)] * 100).sum(axis=1)
        low, _, high = spread.percentiles(totals)
        return high / low

    assert width("repeats") < 1.2
    assert width("published") > 1.5
    one = spread.drawn([("repeats", 50.0, 200.0)])
    assert 0.88 < ((one > 50) & (one < 200)).mean() < 0.92


def test_the_first_table_is_one_that_a_committee_can_read(folder: Path) -> None:
    lines = show.table(planned("known")).splitlines()
    assert [word.strip() for word in lines[1].split("  ") if word.strip()] == [
        "study", "jobs", "expected GPU h", "to request GPU h", "makespan",
    ]  # fmt: skip
    (total,) = [line.split() for line in lines if line.startswith("total ")]
    for text in total[2:4]:
        assert len(text.replace(",", "").rstrip("0")) <= 2
    assert lines[-1].split()[0] == "More"
    assert len(lines) < 14


def test_a_table_has_a_line_per_study_unless_more_is_asked_for(folder: Path) -> None:
    plan = planned("known")
    long = [line for line in show.table(plan).splitlines() if line.startswith("long ")]
    assert len(long) == 1
    assert long[0].split()[1].startswith("8")
    by = [line for line in show.table(plan, ("strategy", "ranks")).splitlines() if line.startswith("long ")]
    assert [line.split()[1:3] for line in by] == [[s, r] for s in ("allreduce", "halving_doubling") for r in "18"]
    with pytest.raises(UserError, match="no groups by `rank`"):
        groups_of("rank")


def test_a_wide_estimate_names_the_measurement_that_would_narrow_it(folder: Path) -> None:
    assert "Wide         long" not in show.table(planned("known"))
    with open(folder / "config/machines/unknown.yaml", "a") as file:
        file.write("peak_tflops: {float32: 10}\n")
    (line,) = [line for line in show.table(planned("unknown")).splitlines() if line.startswith("Wide         long")]
    assert line.endswith("run one configuration of each model first")


def test_the_cost_is_that_of_devices_and_nodes(folder: Path) -> None:
    plan = planned("known")
    (_, gpu, _), (_, node, _) = plan.hours(plan.submitted, "gpu"), plan.hours(plan.submitted, "node")
    cost = plan.cost(plan.submitted)
    assert cost is not None
    assert cost[1] == pytest.approx(0.3 * gpu + node, rel=0.01)
    assert f"Cost         {cost[1]:,.2f} points expected, {cost[2]:,.2f} to request" in show.table(plan)


def test_energy_and_greenhouse_gases_are_those_of_the_machines_power(folder: Path) -> None:
    with open(folder / "config/machines/unknown.yaml", "a") as file:
        file.write("power: {device_watts: 300, co2_g_per_kwh: 500}\nsources: {power: a data sheet}\n")
    plan = planned("unknown")
    assert "CO2e at 500 g/kWh; power: a data sheet" in details(plan)
    kwh = plan.kilowatt_hours()
    assert kwh is not None
    assert kwh == pytest.approx(tuple(0.3 * hours for hours in plan.hours(plan.submitted, "gpu")))


def test_table_json_and_csv_have_the_same_rows(folder: Path) -> None:
    plan = planned("known")
    data = json.loads(json.dumps(show.as_json(plan, {})))
    rows = list(csv.DictReader(show.as_csv(plan).splitlines()))
    assert [row["gpu_hours_to_request"] for row in rows] == [str(row["gpu_hours_to_request"]) for row in data["rows"]]
    assert sum(row["gpu_hours_reserved"] for row in data["rows"]) == data["total"]["gpu_hours_reserved"]
    assert f"Reserved     {data['total']['gpu_hours_reserved']:,} GPU h" in show.table(plan)


def test_runs_wait_for_their_data_and_the_rest_runs_side_by_side(folder: Path) -> None:
    plan = planned("unknown")
    data, *_ = plan.jobs
    (only,) = plan.hours([data], "node")[1:2]
    assert plan.makespan_of(plan.submitted) == pytest.approx(3600 * only + 1800, rel=0.01)
    assert plan.makespan_of(runs_of(plan)) == 1800


def test_the_budget_is_compared_with_what_is_to_be_requested(folder: Path) -> None:
    for machine in ("known", "unknown"):
        plan = planned(machine)
        needed = plan.to_request(plan.submitted, "gpu")
        assert over_budget(plan, needed - 0.01)
        assert not over_budget(plan, needed)
        assert needed < plan.reserved(plan.submitted, "gpu")


def test_a_budget_in_the_configuration_is_passed_to_the_executor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from snakemake_executor_plugin_multinode.executor import budget

    monkeypatch.setenv("MULTINODE_BUDGET_GPU_HOURS", "1")
    (folder / "config/config.yaml").write_text("scale: paper\nbudget_gpu_hours: 500\n")
    monkeypatch.setenv(
        *next(
            iter(set(Project({"machine": "known"}).environment().items()) & {("MULTINODE_BUDGET_GPU_HOURS", "500.0")})
        )
    )
    assert budget(None) == 500
    assert budget(200.0) == 200
    assert budget(900.0) == 500


def test_idle_devices_of_nodes_taken_whole_for_data_are_counted_in_the_plan(folder: Path) -> None:
    plan = planned("unknown")
    (data,) = plan.groups()["data",]
    assert plan.reserved([data], "gpu") == 4 * plan.reserved([data], "node") == IDLE_H


def test_data_that_the_driver_prepares_takes_no_node(folder: Path) -> None:
    (folder / "site.yaml").write_text("prepare: driver\n")
    plan, other = plan_of(Project({"machine": "known", "site": "site.yaml"}), "known"), planned("known")
    assert {job.seen.rule for job in plan.submitted} == {"train"}
    assert other.reserved(other.submitted, "gpu") - plan.reserved(plan.submitted, "gpu") == IDLE_H


def test_a_proposal_has_questions_hours_by_study_jobs_by_nodes_and_the_notes_of_the_plan(folder: Path) -> None:
    project = Project({"machine": "known"})
    plan = plan_of(project, "known")
    page = proposal(plan, project.chosen, date(2026, 1, 31))
    assert "planned on 2026-01-31" in page
    assert "(`long`): What does it cost?" in page
    assert f"To request: **{show.digits(plan.to_request(plan.submitted, 'gpu'))} GPU h**" in page
    total, one_node, two_nodes = [
        line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(("| total", "| 1 |", "| 2 |"))
    ]
    assert total[1].startswith("9")
    assert int(one_node[1]) > 5  # the data, and chains of runs on one node
    assert (one_node[3], two_nodes[3]) == ("230", "230")
    assert "Sources of the estimates: published, rates." in page
    assert "Storage      " in page
    with pytest.raises(UserError, match="nothing would be submitted"):
        proposal(dataclasses.replace(plan, jobs=()), project.chosen, date(2026, 1, 31))


def test_a_plan_says_the_most_storage_at_one_time_and_what_stays(folder: Path) -> None:
    plan = planned("known")
    total = show.rows_of(plan)[-1]
    assert plan.peak.bytes > total["written_bytes"] > 0
    assert plan.peak.files > total["files"] >= 8 * 10
    written = show.size(total["written_bytes"])
    assert f"files at most, checkpoints of running jobs included; {written} and" in details(plan)


def test_copies_that_a_nodes_disk_cannot_hold_are_said(folder: Path) -> None:
    study = folder / "config/studies/long.yaml"
    study.write_text(STUDY.replace("  train:", "  stage: {to: scratch}\n  train:"))
    with open(folder / "config/machines/known.yaml", "a") as file:
        file.write("scratch_gib: 100\n")
    assert "148 GB on a node's own disk, which has 107 GB: stage shards, or less data" in details(planned("known"))


def test_the_waits_of_this_folders_jobs_stand_in_the_plan(folder: Path) -> None:
    lines = []
    for number, wait in enumerate((10, 60, 500)):
        lines.append({"event": "submitted", "name": f"a.{number}", "time_s": 1000, "nodes": 2})
        lines.append({"event": "ended", "name": f"a.{number}", "time_s": 9000, "used_s": 40, "began_s": 1000 + wait})
    Path(".scalestudy").mkdir()
    Path(".scalestudy/jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    project = Project({"machine": "known"})
    plan = plan_of(project, "known")
    words = "jobs of 2 to 3 nodes waited 60 s (median; P90 6.9 min) from submission to start: history of this folder, 3 jobs"
    assert f"Queue        {words}" in details(plan)
    assert show.as_json(plan, {})["waited"][0]["median_s"] == 60.0


def test_the_order_in_which_jobs_are_announced_changes_no_number(folder: Path) -> None:
    one, other = (plan_of(Project({"machine": "known"}), "known", backwards=backwards) for backwards in (False, True))
    assert one.hours(one.submitted, "gpu") == other.hours(other.submitted, "gpu")
    assert one.makespan_s == other.makespan_s
