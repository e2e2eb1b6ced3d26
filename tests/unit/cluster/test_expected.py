"""What a run and a dataset are expected to take, and how that is known; the storage that they need."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.plan import counts
from scalestudy.cluster.plan.expected import UTILISATION, Expectation, TimeEstimate, exchange_time
from scalestudy.cluster.resources import Planner
from scalestudy.files import read_table
from scalestudy.results.stored import append_history, write_result
from scalestudy.spec.base import parse
from scalestudy.spec.config import read_machine
from scalestudy.spec.ids import configuration_id, dataset_id, run_id
from scalestudy.spec.layout import result_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.spec.study import Run
from tests.conftest import ROOT
from tests.unit.analysis.fake_results import result_of

RESNET: dict[str, Any] = {
    "model": {"name": "resnet50"},
    "strategy": {"name": "allreduce"},
    "data": {"source": "image_folder"},
    "batch": {"per_rank": 32},
    "train": {"epochs": 90},
    "measure": {"warmup_steps": 0, "steps": 100},
    "device": "cuda",
    "ranks": 4,
}
NO_EVALUATION = {**RESNET, "train": {"epochs": 90, "evaluate_every_epochs": 0}}
INSTANT = {"nodes": 4, "devices_per_node": 4, "start_up_s": 0.001}
P100 = Machine(**INSTANT, device="cuda", accelerator="p100")
LINKED = P100.model_copy(update={"device_link_gb_per_s": 160, "network_gb_per_s": 50})

pytestmark = pytest.mark.usefixtures("published_numbers")


def run(**keys: Any) -> Run:
    made, problems = parse(RunSpec, keys)
    assert made is not None, problems
    return Run(run_id(made), made, configuration_id(made), dataset_id(made.data))


@pytest.mark.parametrize(
    ("program", "measure", "seconds"),
    [({"explain": True}, {}, (70, 610)), ({}, {"minutes": 0.5}, (40, 340)), ({}, {"steps": 30}, (0, math.inf))],
)
def test_a_program_is_expected_to_take_its_limit_of_time_or_what_its_other_runs_took(
    program: dict[str, Any], measure: dict[str, Any], seconds: tuple[float, float]
) -> None:
    Path("train.py").write_text("")
    made = run(program={"command": "python train.py", "files": ["train.py"], **program}, measure=measure)
    estimate = Expectation("mine", Machine(start_up_s=10)).of(made)
    assert (estimate.low_s, estimate.high_s) == seconds
    assert estimate.kind == ("unknown" if math.isinf(estimate.high_s) else "window")
    same = {"program": made.spec.program.to_dict(), "measure": measure}
    remember(({**same, "ranks": 2}, 100.0), ({**same, "ranks": 4}, 120.0))
    estimate = Expectation("mine", Machine(start_up_s=10)).of(made)
    assert (estimate.low_s, estimate.high_s, estimate.note) == (60, 250, "2 runs of the program")


def remember(*runs: tuple[dict[str, Any], float], **more: Any) -> None:
    """Lines of history.jsonl, as the trainer writes them."""
    file = Path("results/mine/history.jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a") as stream:
        for spec, wall_s in runs:
            made = run(**spec)
            entry = {"run": made.id, "status": "valid", "spec": made.spec.to_dict(), "wall_s": wall_s, **more}
            stream.write(json.dumps(entry) + "\n")


def expected(spec: dict[str, Any], machine: Machine | None = None) -> TimeEstimate:
    return Expectation("mine", machine or Machine(start_up_s=0.001)).of(run(**spec))


def test_other_repeats_come_first_and_another_seed_is_no_repeat() -> None:
    remember(({**RESNET, "seed": 1, "repeat": 1}, 100.0), ({**RESNET, "seed": 2, "repeat": 2}, 110.0))
    estimate = expected(RESNET, P100)
    assert estimate.kind == "repeats"
    assert (estimate.low_s, estimate.high_s) == pytest.approx((97.0, 113.3), abs=0.01)
    assert expected({**RESNET, "seed": 7}).kind == "neighbours"


def test_like_runs_come_next_and_are_scaled_by_what_a_rank_does() -> None:
    remember((NO_EVALUATION, 100.0))
    estimate = expected({**NO_EVALUATION, "strategy": {"name": "ring"}})
    assert estimate.kind == "neighbours"
    assert (estimate.low_s, estimate.high_s) == pytest.approx((80.0, 150.0), abs=0.01)


def steps(count: int) -> dict[str, Any]:
    return {**NO_EVALUATION, "measure": {"warmup_steps": 0, "steps": count}}


def test_the_set_up_of_a_similar_run_is_not_scaled_with_the_samples() -> None:
    """28 s for 100 steps of 0.02 s: 26 s of set-up."""
    remember((steps(100), 28.0), throughput_samples_per_s=4 * 32 / 0.02)
    estimate = expected(steps(10_000))
    assert estimate.low_s < 226 < estimate.high_s < 700


def test_the_published_step_times_lie_within_the_utilisation_that_is_expected() -> None:
    peaks = {"p100": 10.6, "v100": 15.7, "v100_mixed": 125.0, "a100": 156.0, "a100_mixed": 312.0}
    flops = {
        row["model"]: min(float(row["training_flops"]), 3 * float(row["forward_flops"]))
        for row in counts.table("model_costs")
        if int(row["height"]) >= 224
    }
    shares = [
        float(row["images_per_s"]) * flops[row["model"]] / (peaks[row["accelerator"]] * 1e12)
        for row in read_table(ROOT / "config/reference/step_times.csv")
        if row["accelerator"] in peaks
    ]
    assert (min(shares), max(shares)) == pytest.approx(UTILISATION, rel=0.05)


def test_without_one_the_published_step_time_of_the_accelerator_is_taken() -> None:
    """TensorFlow's 195 images/s of a P100: 0.164 s for 32."""
    estimate = expected(NO_EVALUATION, P100)
    assert (estimate.kind, estimate.low_s, estimate.high_s) == ("published", pytest.approx(16.4, abs=0.1), pytest.approx(41.0, abs=0.1))  # fmt: skip
    emulated = expected({**RESNET, "device": "emulated:p100", "strategy": {"name": "single"}, "ranks": 1})
    assert (emulated.kind, emulated.low_s) == ("published", pytest.approx(16.4, abs=0.1))


def test_the_exchange_is_that_of_the_formula_and_hides_behind_the_backward_pass_where_it_overlaps() -> None:
    """Gradients of 102.2 MB from 16 ranks to one server over 50 GB/s, and back: 65 ms beside a step of 164 ms."""
    ring, server, hidden = (
        expected({**NO_EVALUATION, "ranks": 16, "strategy": {"name": name}}, LINKED)
        for name in ("ring", "parameter_server", "allreduce")
    )
    assert server.low_s - ring.low_s == pytest.approx(6.5 - 0.4, abs=0.15)
    assert server.note == "step time of p100, exchange of 0.065 s"
    assert hidden.low_s < ring.low_s
    assert hidden.high_s == ring.high_s


@pytest.mark.parametrize(("ranks", "seconds"), [(4, 2 * 0.75 * 0.1), (6, 2 * 0.75 * 0.1 + 0.2)])
def test_halving_doubling_sends_whole_buffers_too_where_ranks_are_no_power_of_two(ranks: int, seconds: float) -> None:
    """100 MB over links of 1 GB/s, one rank on a node."""
    machine = Machine(nodes=8, devices_per_node=1, device="cuda", network_gb_per_s=1.0)
    made = run(strategy="halving_doubling", ranks=ranks)
    assert exchange_time(made.spec, machine, 1e8) == pytest.approx(seconds, rel=1e-3)


def test_without_one_operations_over_the_peak_are_taken_and_without_any_the_time_is_unknown() -> None:
    """ResNet-50 has 24.5 GFLOP per sample and training step (counted): 0.0739 s for 32 at the 10.6 TFLOP/s of a P100."""
    estimate = expected(NO_EVALUATION, Machine(**INSTANT, device="cuda", peak_tflops={"float32": 10.6}))
    assert estimate.kind == "flops"
    assert (estimate.low_s, estimate.high_s) == pytest.approx((7.39 / 1.35, 7.39 / 0.047), rel=0.02)
    assert not expected(RESNET, Machine(**INSTANT, device="cuda")).known


def test_items_that_take_time_to_fetch_are_shared_by_the_workers() -> None:
    items = {"source": "synthetic", "samples": 320, "shape": [1, 28, 28], "latency_s": 1.0}
    spec = {"model": "small_cnn", "device": "emulated:infinite", "strategy": {"name": "single"}, "ranks": 1, "data": items,
            "batch": {"per_rank": 2}, "measure": {"warmup_steps": 2, "steps": 10},
            "train": {"epochs": 1, "evaluate_every_epochs": 0}}  # fmt: skip
    seconds = [expected({**spec, "loader": {"workers": workers}}).low_s for workers in (0, 1, 3)]
    assert seconds == pytest.approx([24.0, 24.0, 8.0], abs=0.01)


@pytest.mark.parametrize(
    ("changes", "known"),
    [({}, False), ({"loader": {"mode": "synthetic"}}, True), ({"data": {"source": "synthetic"}}, True)],
)
def test_an_accelerator_that_takes_no_time_says_nothing_of_a_run_that_reads(
    changes: dict[str, Any], known: bool
) -> None:
    instant = {**NO_EVALUATION, "device": "emulated:infinite", "strategy": {"name": "single"}, "ranks": 1}
    assert expected({**instant, **changes}, P100).known is known


def test_evaluations_and_what_is_loaded_ahead_are_counted() -> None:
    without, with_evaluation = expected(NO_EVALUATION, P100).low_s, expected(RESNET, P100)
    assert with_evaluation.low_s - without == pytest.approx(50_000 / 3 / 4 / 195, rel=0.01)
    assert "is not indexed yet" in with_evaluation.assumed
    ahead = {**NO_EVALUATION, "measure": {"warmup_steps": 0, "steps": 100, "loader_batches": 50}}
    assert expected(ahead, P100).low_s == pytest.approx(1.5 * without, rel=0.01)


def test_skipped_runs_and_damaged_lines_of_history_count_for_nothing() -> None:
    remember((RESNET, 100.0), status="skipped")
    with open("results/mine/history.jsonl", "a") as file:
        file.write('{"run": "half a li')
    assert not expected(RESNET).known


MACHINE = Machine(nodes=4, devices_per_node=4, start_up_s=2)


def images(**data: Any) -> RunSpec:
    return run(data={"source": "image_folder", **data}).spec


@pytest.mark.parametrize(
    ("data", "low_s", "high_s"),
    [({}, 15, 6658), ({"shard": {"format": "tar"}}, 145, 26625), ({"source": "synthetic"}, 2, 2)],
)
def test_files_used_where_they_lie_are_faster_than_written_ones(data: dict[str, Any], low_s: int, high_s: int) -> None:
    found = Expectation("nowhere", MACHINE).of_dataset(images(**data))
    assert (round(found.low_s), round(found.high_s), found.kind) == (low_s, high_s, "rates")


def test_the_plan_learns_from_all_campaigns_of_a_machine() -> None:
    Path("config/machines").mkdir()
    for name in ("local", "local2"):
        Path(f"config/machines/{name}.yaml").write_text("description: Here\n")
    made = run(data={"source": "digits"})
    file = result_file("local+first", made.id)
    result = {**result_of(made), "started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:00:10+00:00"}
    write_result(file, result)
    unknown = {**result, "metrics": {**result["metrics"], "throughput_samples_per_s": float("nan")}}
    for each in (unknown, result):
        append_history(file, each)
    for name in ("local", "local+first", "local+second"):
        assert Expectation(name, read_machine(name)).of(made).kind == "repeats"
    assert Expectation("local2", read_machine("local2")).of(made).kind != "repeats"


def test_data_of_unknown_size_is_unknown_and_requests_a_short_job(tmp_path: Path) -> None:
    (tmp_path / "config/reference").unlink()
    asked, estimate = Planner("nowhere", MACHINE).of_dataset("unknown", images())
    assert (estimate.known, asked.runtime) == (False, 30)


@pytest.mark.parametrize("machine", ["tsubame3", "flow_type2", "gpu_cluster"])
def test_every_value_of_a_shipped_machine_has_its_source(machine: str) -> None:
    found = read_machine(machine, ROOT / "config/machines")
    assert set(found.to_dict()) - {"sources"} == set(found.sources)


@pytest.mark.slow
def test_the_counted_costs_are_what_is_counted_now() -> None:
    from scalestudy.models.catalogue import SmallCNN, Torchvision
    from scalestudy.models.count import cost_row

    for options, channels, size, classes in (
        (SmallCNN(name="small_cnn"), 1, 8, 10),
        (Torchvision(name="resnet18"), 3, 224, 1000),
    ):
        counted = cost_row(options, channels, size, classes)
        row = next(r for r in counts.table("model_costs") if (r["model"], r["height"]) == (options.name, str(size)))
        for key in ("parameters", "forward_flops", "training_flops"):
            assert row[key] == str(counted[key])
