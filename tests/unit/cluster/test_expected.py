"""What a run is expected to take, and how that is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.ledger.used import LedgerAttempt, last_causes, read_ledger, start_up
from scalestudy.cluster.plan import costs, neighbours
from scalestudy.cluster.plan.expected import UTILISATION, Expectation, TimeEstimate, kinds_of
from scalestudy.spec.base import parse
from scalestudy.spec.config import read_machine
from scalestudy.spec.ids import configuration_id, dataset_id, run_id
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Run

ROOT = Path(__file__).resolve().parents[3]
RESNET: dict[str, Any] = {
    "model": {"name": "resnet50"},
    "strategy": {"name": "allreduce"},
    "data": {"source": "image_folder"},
    "batch": {"per_rank": 32},
    "train": {"epochs": 90},
    "measure": {"warmup_steps": 0, "steps": 100},
    "device": "cuda",
}
NO_EVALUATION = {**RESNET, "train": {"epochs": 90, "evaluate_every_epochs": 0}}
INSTANT = {"nodes": 4, "devices_per_node": 4, "start_up_s": 0.001}


pytestmark = pytest.mark.usefixtures("published_numbers")


def run(**keys: Any) -> Run:
    made, problems = parse(RunSpec, keys)
    assert made is not None, problems
    return Run(run_id(made), made, configuration_id(made), dataset_id(made.data))


def remember(machine: str, *runs: tuple[dict[str, Any], float]) -> None:
    """Lines of history.jsonl, as the trainer writes them."""
    file = Path("results", machine, "history.jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a") as stream:
        for spec, wall_s in runs:
            made = run(**spec)
            entry = {"run": made.id, "status": "valid", "spec": made.spec.plain(), "wall_s": wall_s}
            stream.write(json.dumps(entry) + "\n")


def expected(spec: dict[str, Any], machine: Machine | None = None, name: str = "mine") -> TimeEstimate:
    return Expectation(name, machine or Machine(start_up_s=0.001)).of(run(**spec))


def test_a_job_of_a_machine_of_one_node_starts_as_fast_as_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        Expectation("nowhere", Machine(nodes=1)).start_up_s
        == Expectation("nowhere", Machine()).start_up_s
        == (0.5, 10.0)
    )
    assert Expectation("nowhere", Machine(nodes=2)).start_up_s == (20.0, 120.0)


def test_other_repeats_come_first() -> None:
    spec = {**RESNET, "ranks": 4}
    remember("mine", ({**spec, "seed": 1, "repeat": 1}, 100.0), ({**spec, "seed": 2, "repeat": 2}, 110.0))
    estimate = expected(spec, Machine(**INSTANT, accelerator="p100"))
    assert estimate.kind == "repeats"
    assert (estimate.low_s, estimate.high_s) == pytest.approx((97.0, 113.3), abs=0.01)


def test_another_seed_that_is_no_repeat_is_another_question() -> None:
    remember("mine", ({**RESNET, "ranks": 4, "seed": 7}, 100.0))
    assert expected({**RESNET, "ranks": 4}).kind == "neighbours"


def test_like_runs_come_next_and_are_scaled_by_what_a_rank_does() -> None:
    remember("mine", ({**NO_EVALUATION, "ranks": 4}, 100.0))
    again = {**NO_EVALUATION, "ranks": 4, "strategy": {"name": "ring"}}
    estimate = expected(again)
    assert estimate.kind == "neighbours"
    assert (estimate.low_s, estimate.high_s) == pytest.approx((80.0, 150.0), abs=0.01)


def test_what_similar_runs_took_to_set_up_is_not_scaled_with_the_samples() -> None:
    """28 s for 100 steps and 46 s for 1,000: 26 s of set-up, and 0.02 s a step."""
    long = {**NO_EVALUATION, "ranks": 4, "measure": {"warmup_steps": 0, "steps": 1000}}
    longer = {**NO_EVALUATION, "ranks": 4, "measure": {"warmup_steps": 0, "steps": 2000}}
    remember("mine", ({**NO_EVALUATION, "ranks": 4}, 28.0), (long, 46.0))
    estimate = expected(longer)
    assert estimate.low_s < 66 < estimate.high_s < 120


def test_one_similar_run_of_known_throughput_is_enough_to_tell_its_set_up() -> None:
    remember("mine", ({**NO_EVALUATION, "ranks": 4}, 28.0))
    file = Path("results/mine/history.jsonl")
    entry = {**json.loads(file.read_text()), "throughput_samples_per_s": 4 * 32 / 0.02}
    file.write_text(json.dumps(entry) + "\n")
    estimate = expected({**NO_EVALUATION, "ranks": 4, "measure": {"warmup_steps": 0, "steps": 10_000}})
    assert estimate.low_s < 226 < estimate.high_s < 700


def seconds(ranks: int, rank_batch: int, samples: float, *seen: neighbours.EndedRun) -> tuple[float, float]:
    return neighbours.seconds_of(ranks, rank_batch, samples, neighbours.by_geometry(seen))


def test_without_a_split_one_similar_run_says_from_all_set_up_to_none() -> None:
    assert seconds(4, 32, 1000.0, neighbours.EndedRun(4, 32, 100.0, 10.0)) == pytest.approx(
        (10 * 0.8**1.5, 100 * 1.5**1.5)
    )


def test_an_expectation_from_similar_runs_widens_with_the_distance() -> None:
    seen = neighbours.EndedRun(1, 32, 3200.0, 100.0, 10.0)
    spans = [seconds(ranks, 32, 3200.0, seen) for ranks in (1, 4, 128)]
    assert spans[0] == pytest.approx((80.0, 150.0))
    assert spans[1] == pytest.approx((64.0, 225.0))
    assert spans[2][0] < 40 and spans[2][1] > 500
    other_batch = seconds(1, 128, 3200.0, seen)
    assert other_batch == pytest.approx(spans[1])


def test_a_published_time_of_this_very_configuration_comes_before_similar_runs() -> None:
    machine = Machine(**INSTANT, device="cuda", published=("tsubame_resnet50",), accelerator="p100")
    remember("mine", ({**NO_EVALUATION, "ranks": 1}, 28.0))
    exact = {**NO_EVALUATION, "ranks": 32, "strategy": {"name": "halving_doubling"}}
    assert expected(exact, machine).kind == "published"
    assert expected({**exact, "ranks": 16}, machine).kind == "neighbours"


def test_evaluations_that_a_published_training_time_holds_are_not_counted_again() -> None:
    machine = Machine(**INSTANT, device="cuda", published=("tsubame_resnet50",))
    whole = {**RESNET, "ranks": 32, "strategy": {"name": "halving_doubling"}, "measure": {"warmup_steps": 0}}
    estimate = expected(whole, machine)
    assert (estimate.low_s, estimate.high_s) == pytest.approx((0.8 * 44_862, 1.25 * 44_862), rel=1e-3)


def test_the_published_step_times_lie_within_the_utilisation_that_is_expected() -> None:
    peaks = {"p100": 10.6, "v100": 15.7, "v100_mixed": 125.0, "a100": 156.0, "a100_mixed": 312.0}
    flops = {
        row["model"]: min(float(row["training_flops"]), 3 * float(row["forward_flops"]))
        for row in costs.table("model_costs")
        if int(row["height"]) >= 224
    }
    shares = [
        float(row["images_per_s"]) * flops[row["model"]] / (peaks[row["accelerator"]] * 1e12)
        for row in costs.table("step_times")
        if row["accelerator"] in peaks
    ]
    assert min(shares) == pytest.approx(UTILISATION[0], rel=0.05)
    assert max(shares) == pytest.approx(UTILISATION[1], rel=0.05)


def test_a_published_time_of_this_machine_strategy_and_ranks_is_brought_to_a_step() -> None:
    """Takenaka et al., Table 2 (a): 44,862 s for 90 epochs on 32 GPUs of 32 samples each, 0.3985 s a step."""
    machine = Machine(**INSTANT, device="cuda", published=("tsubame_resnet50",), accelerator="p100")
    estimate = expected({**NO_EVALUATION, "ranks": 32, "strategy": {"name": "halving_doubling"}}, machine)
    assert estimate.kind == "published"
    assert (estimate.low_s, estimate.high_s) == pytest.approx((31.9, 49.8), abs=0.1)


def test_without_one_the_published_step_time_of_the_accelerator_is_taken() -> None:
    """TensorFlow's 195 images/s of a P100: 0.164 s for 32."""
    estimate = expected({**NO_EVALUATION, "ranks": 4}, Machine(**INSTANT, device="cuda", accelerator="p100"))
    assert (estimate.kind, estimate.low_s, estimate.high_s) == ("published", pytest.approx(16.4, abs=0.1), pytest.approx(41.0, abs=0.1))  # fmt: skip


LINKED = Machine(**INSTANT, device="cuda", accelerator="p100", device_link_gb_per_s=160, network_gb_per_s=50)


def test_the_exchange_of_a_server_is_in_the_plan_by_its_formula_over_the_machines_links() -> None:
    """Gradients of 102.2 MB from 16 ranks to one server over 50 GB/s, and back: 65 ms beside a step of 164 ms."""
    ring, server = (
        expected({**NO_EVALUATION, "ranks": 16, "strategy": {"name": name}}, LINKED)
        for name in ("ring", "parameter_server")
    )
    assert server.low_s - ring.low_s == pytest.approx(6.5 - 0.4, abs=0.15)
    assert server.note == "step time of p100, exchange of 0.065 s"


def test_an_exchange_that_overlaps_may_hide_behind_the_backward_pass() -> None:
    hidden, open_ = (
        expected({**NO_EVALUATION, "ranks": 16, "strategy": {"name": name}}, LINKED) for name in ("allreduce", "ring")
    )
    assert hidden.low_s < open_.low_s
    assert hidden.high_s == open_.high_s


@pytest.mark.parametrize("ranks", [2, 16])
@pytest.mark.parametrize(
    "strategy",
    ["allreduce", "ring", "halving_doubling", "hierarchical", "two_dimensional", "parameter_server", "zero1", "fsdp"],
)
def test_where_step_time_and_links_are_known_the_ends_lie_within_a_factor_of_five(strategy: str, ranks: int) -> None:
    estimate = expected({**NO_EVALUATION, "ranks": ranks, "strategy": {"name": strategy}}, LINKED)
    assert 1 < estimate.high_s / estimate.low_s < 5


def test_without_one_operations_over_the_peak_are_taken() -> None:
    """ResNet-50 has 24.5 GFLOP per sample and training step (counted): 0.0739 s for 32 at the 10.6 TFLOP/s of a P100."""
    estimate = expected({**NO_EVALUATION, "ranks": 4}, Machine(**INSTANT, device="cuda", peak_tflops={"float32": 10.6}))
    assert estimate.kind == "flops"
    assert estimate.low_s == pytest.approx(7.39 / 1.35, rel=0.02)
    assert estimate.high_s == pytest.approx(7.39 / 0.047, rel=0.02)


def test_without_any_the_time_is_unknown() -> None:
    assert not expected({**RESNET, "ranks": 4}, Machine(**INSTANT, device="cuda")).known


def test_emulated_runs_take_the_step_time_of_what_they_emulate() -> None:
    spec = {**RESNET, "device": "emulated:p100", "strategy": {"name": "single"}, "ranks": 1}
    estimate = expected(spec)
    assert estimate.kind == "published"
    assert estimate.low_s == pytest.approx(16.4, abs=0.1)


def test_items_that_take_time_to_fetch_are_shared_by_the_workers() -> None:
    items = {"source": "synthetic", "samples": 320, "shape": [1, 28, 28], "latency_s": 1.0}
    spec = {"model": "small_cnn", "device": "emulated:infinite", "strategy": {"name": "single"}, "ranks": 1, "data": items,
            "batch": {"per_rank": 2}, "measure": {"warmup_steps": 2, "steps": 10},
            "train": {"epochs": 1, "evaluate_every_epochs": 0}}  # fmt: skip
    seconds = [expected({**spec, "loader": {"workers": workers}}).low_s for workers in (0, 1, 3)]
    assert seconds == pytest.approx([24.0, 24.0, 8.0], abs=0.01)


def test_evaluations_and_what_is_loaded_ahead_are_counted() -> None:
    machine = Machine(**INSTANT, device="cuda", accelerator="p100")
    without = expected({**NO_EVALUATION, "ranks": 4}, machine).low_s
    with_evaluation = expected({**RESNET, "ranks": 4}, machine).low_s
    assert with_evaluation - without == pytest.approx(50_000 / 3 / 4 / 195, rel=0.01)
    ahead = {**NO_EVALUATION, "ranks": 4, "measure": {"warmup_steps": 0, "steps": 100, "loader_batches": 50}}
    assert expected(ahead, machine).low_s == pytest.approx(1.5 * without, rel=0.01)


def test_a_run_cut_short_takes_no_longer_than_its_full_training() -> None:
    digits = {"data": {"source": "digits"}, "batch": {"per_rank": 100}, "measure": {"warmup_steps": 5, "steps": 10**6}}
    work = costs.work_of(run(**digits).spec, costs.Data(1437, 360, 0))
    assert (work.steps, work.evaluated_samples) == (14, 360)


def test_image_folders_are_assumed_until_they_are_indexed_and_that_is_said() -> None:
    machine = Machine(**INSTANT, device="cuda", accelerator="p100")
    assert "is not indexed yet" in expected({**RESNET, "ranks": 4}, machine).assumed


def test_skipped_runs_and_damaged_lines_of_history_count_for_nothing() -> None:
    remember("mine", ({**RESNET, "ranks": 4}, 100.0))
    file = Path("results/mine/history.jsonl")
    skipped = {**json.loads(file.read_text()), "status": "skipped", "wall_s": None}
    file.write_text(json.dumps(skipped) + '\n{"run": "half a li')
    assert not expected({**RESNET, "ranks": 4}).known


def test_a_sum_says_all_that_is_in_it_best_first() -> None:
    kinds = [TimeEstimate(0, 1, "flops"), TimeEstimate(0, 1, "repeats"), TimeEstimate(0, 1, "flops")]
    assert kinds_of(kinds) == "repeats+flops"


def test_times_of_steps_are_lengthened_by_what_runs_of_this_machine_took_beside_theirs() -> None:
    emulated = {**NO_EVALUATION, "device": "emulated:p100", "data": {"source": "synthetic", "shape": [3, 64, 64]}}
    before = expected(emulated)
    file = Path("results/mine/history.jsonl")
    file.parent.mkdir(parents=True)
    other = run(**{**NO_EVALUATION, "model": {"name": "alexnet"}, "data": {"source": "synthetic", "samples": 10_000}})
    entries = [
        {
            "run": other.id,
            "status": "valid",
            "spec": other.spec.plain(),
            "wall_s": 32.0 + more,
            "throughput_samples_per_s": 100.0,
        }
        for more in (5, 6, 7)
    ]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries[:2]))
    assert expected(emulated) == before
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    after = expected(emulated)
    assert (before.kind, after.kind) == ("published", "published")
    assert (after.low_s - before.low_s, after.high_s - before.high_s) == pytest.approx((5.2, 6.8))


def test_what_jobs_take_outside_their_runs_is_learned_from_three_on() -> None:
    links = [LedgerAttempt(f"n{i}", f"run{i}", 4, 1, 30.0 + i) for i in range(3)]
    wall_s = {f"run{i}": [20.0] for i in range(3)}
    assert start_up(wall_s, links) == pytest.approx((10.2, 11.8))
    assert start_up(wall_s, links[:2]) is None


def test_the_ledger_is_read_by_run_and_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    run_name = "resnet50.synthetic.allreduce.x4.r0-901ce9d351cc"
    ledger = tmp_path / "jobs.jsonl"
    ledger.write_text(
        json.dumps({"event": "submitted", "job": f"train box {run_name}", "name": "a.1", "link": 1, "nodes": 2, "gpus": 8})
        + "\n" + json.dumps({"event": "id", "name": "a.1", "id": "7"})
        + "\n" + json.dumps({"event": "ended", "name": "a.1", "used_s": 42, "cause": "finished"})
        + '\n{"event": "sub'
    )  # fmt: skip
    assert read_ledger(ledger) == [LedgerAttempt("a.1", run_name, 8, 2, 42.0, 1, machine="box")]


@pytest.mark.parametrize("machine", ["tsubame3", "flow_type2", "gpu_cluster"])
def test_every_value_of_a_shipped_machine_has_its_source(machine: str) -> None:
    found = read_machine(machine, ROOT / "config/machines")
    assert set(found.plain()) - {"sources"} == set(found.sources)


@pytest.mark.slow
def test_the_counted_costs_are_what_is_counted_now() -> None:
    from scalestudy.models.catalogue import SmallCNN, Torchvision
    from scalestudy.models.count import cost_row

    for options, channels, size, classes in (
        (SmallCNN(name="small_cnn"), 1, 8, 10),
        (Torchvision(name="alexnet"), 3, 224, 1000),
        (Torchvision(name="resnet50"), 3, 224, 1000),
    ):
        counted = cost_row(options, channels, size, classes)
        row = next(r for r in costs.table("model_costs") if (r["model"], r["height"]) == (options.name, str(size)))
        assert {key: row[key] for key in ("parameters", "forward_flops", "training_flops")} == {
            key: str(counted[key]) for key in ("parameters", "forward_flops", "training_flops")
        }


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, scalestudy.dag, scalestudy.cluster.plan.show, scalestudy.cluster.submit, "
        "scalestudy.cluster.ledger.actual, scalestudy.cluster.doctor.examine; print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "False\n"


def test_why_the_last_job_of_a_run_ended_is_in_the_ledger(tmp_path: Path) -> None:
    ledger, run = tmp_path / "jobs.jsonl", "small_cnn.r1-0123456789ab"
    lines = []
    for name, cause in (("a", "preempted"), ("b", "out of memory")):
        lines.append({"event": "submitted", "name": name, "job": f"train local {run}"})
        lines.append({"event": "ended", "name": name, "cause": cause})
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "submi')
    assert last_causes(ledger) == {run: "out of memory"}
    assert last_causes(tmp_path / "none") == {}


def test_data_that_is_made_while_it_is_read_is_stored_in_no_file() -> None:
    made = RunSpec.model_validate({"data": {"source": "synthetic", "samples": 1281167}, "batch": {"per_rank": 8}})
    pictures = RunSpec.model_validate({"data": {"source": "synthetic_jpeg", "samples": 100}, "batch": {"per_rank": 8}})
    assert (costs.stored_files(made), costs.stored_bytes(made)) == (0, 0)
    assert costs.stored_files(pictures) == 110
