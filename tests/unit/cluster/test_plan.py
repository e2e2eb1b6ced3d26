"""What a plan counts: chains, unknown times, prices, and sums that agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from scalestudy.cluster.plan import show
from scalestudy.cluster.plan.hours import AnnouncedJob, Plan, PlannedJob, drawn, make_plan, percentiles
from scalestudy.dag.project import Project
from scalestudy.errors import duration
from scalestudy.spec.layout import result_file

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


@pytest.fixture
def folder(tmp_path: Path, published_numbers: None) -> Path:
    """A project with one study and two machines: one whose accelerator has published step times, one without."""
    for part in ("studies", "machines"):
        (tmp_path / "config" / part).mkdir()
    (tmp_path / "config/studies/long.yaml").write_text(STUDY)
    (tmp_path / "config/machines/known.yaml").write_text(MACHINE + "accelerator: p100\n")
    (tmp_path / "config/machines/unknown.yaml").write_text(MACHINE)
    (tmp_path / "config/config.yaml").write_text("scale: paper\n")
    (tmp_path / "site.yaml").write_text("scheduler: {kind: slurm}\n")
    return tmp_path


def planned(
    machine: str,
    *,
    backwards: bool = False,
    asked: Mapping[str, int] | None = None,
    jobs_at_once: int | None = None,
    **config: str,
) -> Plan:
    """The plan of everything, as if a dry run had announced each run and its dataset; `asked` of runs by `--set-resources`."""
    project = Project({"machine": machine, "site": "site.yaml", **config})
    study = project.chosen[0]
    dataset = study.runs[0].dataset
    manifest = f"results/data/{dataset}/manifest.json"
    seen = [AnnouncedJob("dataset", {"dataset": dataset}, (), (manifest,), {}, 2_000_000)]
    for run in study.runs:
        wildcards, out = {"machine": machine, "run": run.id}, str(result_file(machine, run.id))
        resources = {"study": study.name, **(asked or {})}
        seen.append(AnnouncedJob("train", wildcards, (manifest,), (out,), resources, 1_000_000))
    return make_plan(project, seen[::-1] if backwards else seen, jobs_at_once)


def runs_of(plan: Plan) -> list[PlannedJob]:
    return [job for job in plan.submitted if job.seen.rule == "train"]


def test_jobs_and_chains_of_jobs_add_up_to_the_total_to_the_last_digit(folder: Path) -> None:
    plan = planned("known")
    content = show.as_json(plan)
    jobs = [job for job in content["jobs"] if job["submitted"]]
    for parts in (content["rows"], jobs):
        for name in ("gpu_hours_reserved", "node_hours_reserved"):
            assert sum(Decimal(str(part[name])) for part in parts) == Decimal(str(content["total"][name]))
    chained = [job for job in jobs if job["attempts"] > 1]
    assert chained
    assert all(job["resources"]["runtime"] <= 24 * 60 for job in chained)
    assert f"Jobs         +{sum(job['attempts'] - 1 for job in chained)}: further jobs" in show.table(plan)


def test_a_run_without_an_estimate_is_in_no_percentile_and_counts_with_its_reservation(folder: Path) -> None:
    plan = planned("unknown")
    assert plan.hours(runs_of(plan), "gpu") == (0, 0, 0)
    assert plan.reserved(runs_of(plan), "gpu") == plan.to_request(runs_of(plan), "gpu") == 24
    # 24 GPU hours at 0.3 points; four runs on a node and four on two, half an hour each.
    assert show.cost(plan, runs_of(plan)) == (0, 13.2)
    assert show.as_json(plan)["unknown"] == {"jobs": 8, "gpu_hours_reserved": 24}
    text = show.table(plan)
    assert "Unknown      8 jobs without an estimate: their 24 reserved GPU h are in what is to be requested" in text
    assert [line.split()[2] for line in text.splitlines() if line.startswith("long ")] == ["–"]
    assert plan.makespan_s(plan.jobs)[0] >= 1800  # its whole walltime


def test_a_run_that_goes_on_in_further_jobs_starts_again_in_each(folder: Path) -> None:
    def hours(start_up_s: int) -> tuple[float, float]:
        (folder / "config/machines/known.yaml").write_text(f"{MACHINE}accelerator: p100\nstart_up_s: {start_up_s}\n")
        plan = planned("known")
        longest, *_ = (job for job in plan.submitted if ".allreduce.x1." in job.seen.name)
        assert longest.resources.links > 2
        return plan.hours([longest], "node")[1], plan.makespan_s(plan.jobs)[1]

    (fast_h, fast_s), (slow_h, slow_s) = hours(1), hours(3001)
    assert slow_h - fast_h > 3000 / 3600 * 2
    assert slow_s - fast_s > 2 * 3000


def test_a_shorter_walltime_that_is_asked_for_makes_more_jobs_of_a_run_and_no_fewer_hours(folder: Path) -> None:
    def of_longest(plan: Plan) -> tuple[int, float, float]:
        longest, *_ = (job for job in plan.submitted if ".allreduce.x1." in job.seen.name)
        return longest.resources.links, plan.reserved([longest], "node"), plan.hours([longest], "node")[1]

    (links, reserved, hours), (more_links, _, more_hours) = map(
        of_longest, (planned("known"), planned("known", asked={"runtime": 60}))
    )
    assert more_links > 20 * links
    assert reserved > more_hours > hours


def test_the_percentiles_of_a_sum_lie_below_the_reservations_whatever_the_order_of_the_jobs(folder: Path) -> None:
    plan, other = planned("known"), planned("known", backwards=True)
    low, middle, high = plan.hours(plan.submitted, "gpu")
    assert 0 < low < middle < high < plan.reserved(plan.submitted, "gpu")
    assert other.hours(other.submitted, "gpu") == (low, middle, high)
    assert other.makespan_s(other.jobs) == plan.makespan_s(plan.jobs)


def test_runs_whose_errors_are_their_own_make_a_sum_more_certain_than_those_of_one_source() -> None:
    def width(kind: str) -> float:
        low, _, high = percentiles(drawn([(kind, 50.0, 200.0)] * 100).sum(axis=1))
        return high / low

    assert width("repeats") < 1.2
    assert width("published") > 1.5
    one = drawn([("repeats", 50.0, 200.0)])
    assert 0.88 < ((one > 50) & (one < 200)).mean() < 0.92


def test_the_cost_is_that_of_devices_and_nodes(folder: Path) -> None:
    plan = planned("known")
    (_, gpu, _), (_, node, _) = plan.hours(plan.submitted, "gpu"), plan.hours(plan.submitted, "node")
    expected, most = show.cost(plan, plan.submitted)
    assert expected == pytest.approx(0.3 * gpu + node, rel=0.01)
    assert f"Cost         {expected:,.2f} points expected, {most:,.2f} to request" in show.table(plan)


def test_the_least_makespan_is_the_longest_chain_or_the_work_over_the_limits_of_a_user(folder: Path) -> None:
    def least(limits: str) -> tuple[float, float]:
        """Of all jobs, and of the eight runs: half an hour each, four of them on two nodes."""
        (folder / "config/machines/unknown.yaml").write_text(MACHINE + limits)
        plan = planned("unknown")
        return plan.makespan_s(plan.submitted)[1], plan.makespan_s(runs_of(plan))[1]

    whole, runs = least("")
    data, *_ = planned("unknown").jobs
    assert runs == 1800
    assert whole == pytest.approx(3600 * planned("unknown").hours([data], "node")[1] + 1800)
    assert least("limits: {most_jobs: 2}")[1] == 8 * 1800 / 2
    assert least("limits: {most_nodes_running: 4}")[1] == 12 * 1800 / 4
    assert least("limits: {most_nodes_running: 1}")[1] == 8 * 1800  # a run that is wider than the limit has it alone
    assert least("queues: {wide: {most_jobs: 1}}")[1] == 8 * 1800


def test_data_takes_a_whole_node_unless_the_driver_prepares_it(folder: Path) -> None:
    plan = planned("unknown")
    (data,) = plan.by_study()["data"]
    assert plan.reserved([data], "gpu") == 4 * plan.reserved([data], "node") == 8  # 120 minutes
    (folder / "site.yaml").write_text("scheduler: {kind: slurm}\nprepare: driver\n")
    assert {job.seen.rule for job in planned("unknown").submitted} == {"train"}


def test_without_a_scheduler_the_plan_is_in_time_and_nothing_is_reserved(folder: Path) -> None:
    (folder / "site.yaml").write_text("{}")
    plan = planned("known", jobs_at_once=1)
    text = show.table(plan)
    assert text.splitlines()[1].split() == ["study", "jobs", "expected", "up", "to", "(P90)", "source"]
    seconds = plan.drawn_s.sum(axis=1)
    assert plan.makespan_s(plan.submitted) == pytest.approx(percentiles(seconds))
    _, middle, high = map(duration, percentiles(seconds))
    assert re.search(rf"^total +9 .* {middle} +{high} +", text, re.MULTILINE), text
    assert not re.search("Reserved|node h|request|Chain|walltime", text)
    assert "GPU hours    " in text


def test_without_a_scheduler_the_time_of_runs_without_an_estimate_is_in_no_number(folder: Path) -> None:
    (folder / "site.yaml").write_text("{}")
    plan = planned("unknown", jobs_at_once=1)
    (data,) = plan.by_study()["data"]
    assert plan.makespan_s(plan.submitted) == plan.makespan_s([data])
    text = show.table(plan)
    assert re.search("^long +8 +– +– +unknown$", text, re.MULTILINE) and text.count(" + ?") == 2  # of the total
    assert "Unknown      8 jobs without an estimate" in text
