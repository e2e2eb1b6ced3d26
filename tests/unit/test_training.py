"""The parts of a run that can be judged without one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from scalestudy.data.manifest import Manifest, SplitInfo
from scalestudy.errors import UserError
from scalestudy.launch import largest_batch
from scalestudy.results.metrics import expected_read_bytes, intervals, metrics
from scalestudy.results.records import Measured, facts_of_hosts
from scalestudy.results.validity import RunEvidence, invalid_reason, unchecked
from scalestudy.results.warnings import fault_warnings, pause_warnings, window_warnings
from scalestudy.spec.columns import METRICS, SPEEDS
from scalestudy.spec.run import RunSpec
from scalestudy.strategies.base import World
from scalestudy.training.evaluator import auroc_per_label, evaluate
from scalestudy.training.job import Job, Resolved
from scalestudy.training.report import Evaluation, KernelUsage, Report
from scalestudy.training.schedule import Schedule
from tests.conftest import ROOT


def spec(**data: object) -> RunSpec:
    """A run from plain data."""
    return RunSpec.model_validate_json(json.dumps(data))


def manifest(samples: int = 100, size: int = 1000) -> Manifest:
    """A dataset of a stated number of samples and bytes."""
    return Manifest(
        "d", "ready", {}, format="files", classes=10, train=SplitInfo(samples, size), test=SplitInfo(10, 100)
    )


def job(run: RunSpec, folder: Path = Path("nowhere"), hosts: tuple[str, ...] = ("a",), **resolved: Any) -> Job:
    """A run that is never started; `resolved` are settings of the machine."""
    settings = {"device": "cpu", "threads_per_rank": 1, "cores": 2, "step_time_s": None, **resolved}
    nodes = len(hosts)
    made = Resolved(nodes=nodes, ranks_per_node=run.ranks // nodes, **settings)
    return Job("r", run, made, folder, folder, folder, folder, hosts)


PARTS = (0.04, 0.005, 0.01, 0.015, 0.02, 0.01)
"""Data, convert, forward, backward, exchange, optimiser, seconds."""


def measured(run: RunSpec, steps: int = 10, **changes: object) -> Measured:
    """Ranks whose every step takes 0.1 s, divided as PARTS has it; made up, not run."""
    marks = np.cumsum([[0.0, *PARTS]] * steps, axis=1) + 0.1 * np.arange(steps)[:, None]
    reports = [
        Report(
            rank, parameter_digest="a", samples_seen=steps * run.rank_batch, steps_done=steps, window=(2, steps),
            read_bytes=0, epochs_done=1.0, parameters=5, loop_s=1.5,
        )
        for rank in range(run.ranks)
    ]  # fmt: skip
    reports[-1] = replace(reports[-1], **changes)  # type: ignore[arg-type]
    return Measured(reports, np.stack([marks] * run.ranks), np.ones((run.ranks, steps)))


def judged(of: Job, found: Measured, data: Manifest, **hosts: float | None) -> str:
    """Why a run is invalid; empty where it is valid."""
    evidence = RunEvidence(of, found, metrics(of, found, data, 1.0, None, hosts), data)
    return invalid_reason(evidence) or "; ".join(unchecked(evidence))


CUT = {"measure": {"steps": 8, "warmup_steps": 2}}


def test_the_rate_falls_in_steps_and_warms_up_from_a_tenth() -> None:
    steps = {"every_epochs": 30.0, "factor": 0.1}
    rate = Schedule(spec(optimiser={"learning_rate": 1.0, "warmup_epochs": 2.0, "steps": steps}), 10).learning_rate
    assert list(map(rate, (0, 10, 20, 299))) == pytest.approx([0.1, 0.55, 1.0, 1.0])
    assert list(map(rate, (300, 599, 600))) == pytest.approx([0.1, 0.1, 0.01])


def test_a_rate_scaled_with_the_batch_warms_up_from_the_unscaled_one() -> None:
    optimiser = {"learning_rate": 0.1, "learning_rate_for_batch": 256, "warmup_epochs": 2.0}
    large, small = (Schedule(spec(optimiser=optimiser, batch={"global": size}), 10) for size in (1024, 64))
    assert [large.learning_rate(step) for step in (0, 10, 20, 99)] == pytest.approx([0.1, 0.25, 0.4, 0.4])
    assert small.learning_rate(50) == pytest.approx(0.025)


def test_throughput_and_phases_are_those_of_the_window_on_the_slowest_rank() -> None:
    run = spec(strategy="halving_doubling", ranks=2, **CUT)
    found = measured(run)
    found.reports[0].sample_at_peak_s = 0.01
    values = metrics(job(run), found, manifest(640), 2.0, None)
    assert values["throughput_samples_per_s"] == pytest.approx(640.0)
    assert values["mfu"] == pytest.approx(3.2)  # 640 samples/s on two ranks; not clipped
    assert values["step_time_s"] == pytest.approx(0.1)
    names = ("data", "convert", "forward", "backward", "compute", "exchange", "exchange_wait", "optimiser")
    assert [values[f"{name}_s"] for name in names] == pytest.approx([0.04, 0.005, 0.01, 0.015, 0.025, 0.02, 0.0, 0.01])
    assert values["data_stall"] == pytest.approx(0.4)
    assert values["epoch_time_s"] == pytest.approx(1.0)


def test_every_metric_is_a_column_and_every_column_has_something_that_measures_it() -> None:
    made_up = job(run := spec(strategy="halving_doubling", ranks=2, **CUT))
    hosts = facts_of_hosts(made_up, [], [], None).values
    names = metrics(made_up, measured(run), manifest(), 2.0, None, hosts).keys()
    assert names <= METRICS.keys()
    package = ROOT / "workflow/scalestudy"
    code = "".join(
        file.read_text() for file in (package / "results/timeline.py", *package.glob("strategies/pipeline/*.py"))
    )
    assert [name for name in METRICS.keys() - names - {*SPEEDS} if f'"{name}"' not in code] == []


def test_what_the_kernel_counted_is_summed_over_ranks_and_told_per_step() -> None:
    run = spec(strategy="halving_doubling", ranks=2, **CUT)
    found = measured(run)
    found.reports[0].window_usage, found.reports[0].window_usage_steps = KernelUsage(6.0, 2.0, 800, 8, 80), 8
    assert metrics(job(run), found, manifest(640), 2.0, None)["system_share"] is None  # one of two ranks is not known
    found.reports[1].window_usage, found.reports[1].window_usage_steps = KernelUsage(8.0, 4.0, 1600, 0, 0), 8
    values = metrics(job(run), found, manifest(640), 2.0, None)
    assert values["system_share"] == pytest.approx(0.3)
    assert [values[name] for name in ("minor_faults", "major_faults", "involuntary_switches")] == [300.0, 1.0, 10.0]


def test_what_an_overlapped_exchange_adds_is_the_mean_of_pairs_with_an_interval() -> None:
    run = spec(strategy="allreduce", ranks=2, **CUT)
    found = measured(run)
    assert metrics(job(run), found, manifest(640), 2.0, None)["exposed_exchange_s"] is None
    found.reports[0].exchange_pairs = [(0.12, 0.10), (0.13, 0.10), (0.14, 0.10)]
    assert metrics(job(run), found, manifest(640), 2.0, None)["exposed_exchange_s"] == pytest.approx(0.03)
    # s = 0.01, t(0.975, 2) = 4.302653, half width 4.302653 * 0.01 / sqrt(3)
    assert intervals(job(run), found, manifest(640))["exposed_exchange_s"] == pytest.approx(
        [0.005159, 0.054841], abs=1e-6
    )


def test_a_slow_rank_is_counted_once_and_the_parts_sum_to_the_step() -> None:
    run = spec(strategy="ring", ranks=2, **CUT)
    # Rank 1, whose clock began earlier, computes for 50 ms longer; rank 0 waits for it, and the transfer takes 10 ms.
    found, begins = measured(run), 0.09 * np.arange(10)[:, None]
    ranks = [(0.0, 0.01, 0, 0.005, 0.005, 0.06, 0.01), (1000.0, 0.01, 0, 0.005, 0.055, 0.01, 0.01)]
    found = replace(found, marks=np.stack([np.cumsum([own] * 10, axis=1) + begins for own in ranks]))
    values = metrics(job(run), found, manifest(640), 2.0, None)
    summed = ("data_s", "convert_s", "compute_s", "exchange_s", "optimiser_s")
    assert [values[name] for name in summed] == pytest.approx([0.01, 0.0, 0.06, 0.01, 0.01])
    assert values["step_time_s"] == pytest.approx(0.09)
    assert values["exchange_wait_s"] == pytest.approx(0.025)  # 50 ms on one of two ranks


@pytest.mark.parametrize(("faults", "count"), [(400_000, 0), (500_001, 1)])
def test_page_faults_that_take_more_than_a_tenth_of_the_cpu_time_are_warned_of(faults: int, count: int) -> None:
    found = measured(spec(strategy="halving_doubling", ranks=2, **CUT))
    for report in found.reports:
        report.window_usage = KernelUsage(4.0, 1.0, faults, 0, 0)  # 5 s of CPU time on each rank; a fault takes 1 µs
    warnings = list(fault_warnings(found.reports))
    assert len(warnings) == count
    assert all(warning.startswith("page faults (1,000,002 in the window) took at least 10%") for warning in warnings)


def test_a_window_whose_halves_differ_is_warned_of() -> None:
    run = spec(**CUT)
    steady, slowing = measured(run, steps=40), measured(run, steps=40)
    for found in (steady, slowing):
        found.reports[0].window = (0, 40)
    slowing.marks[0, 20:] += 0.02 * np.arange(20)[:, None]
    assert list(window_warnings(steady)) == []
    (sentence,) = window_warnings(slowing)
    assert sentence.startswith("the second half of the window was 19.0% slower than the first (± ")


def test_a_run_that_stood_still_is_warned_of() -> None:
    found, seconds = measured(spec(**CUT)), [{"node": 0.0, "clock_s": float(clock)} for clock in range(5)]
    assert list(pause_warnings(found, seconds)) == []
    (sentence,) = pause_warnings(found, [*seconds, {"node": 0.0, "clock_s": 44.0}])
    assert sentence.startswith(
        "the run stood still for 40 s, as a machine that sleeps or processes that are stopped do"
    )
    found.marks[0, 3, 2:] += 9.0
    (sentence,) = pause_warnings(found, seconds)
    assert sentence == "rank 0 stood still for 9 s in step 3; the median step takes 0.1 s"


def test_the_training_time_of_a_run_cut_short_is_all_its_steps_and_evaluations() -> None:
    run = spec(train={"epochs": 50, "evaluate_every_epochs": 10}, **CUT)
    found = measured(run, evaluations=[Evaluation(50, 10, 1.0, 3.0)])
    values = metrics(job(run), found, manifest(320), 2.0, None)
    assert values["training_time_s"] == pytest.approx(50 * 10 * 0.1 + 5 * 3.0)
    assert values["extrapolation_factor"] == pytest.approx(81.25)  # 65 s from 8 steps


def test_a_processor_that_was_slowed_down_against_heat_makes_the_run_invalid() -> None:
    run = spec(**CUT)
    assert judged(job(run), measured(run), manifest(), throttled_share=0.05) == ""
    words = "thermally throttled for 6% of the window, more than 5%"
    assert words in judged(job(run), measured(run), manifest(), throttled_share=0.06)


def test_a_transport_that_fell_back_makes_the_run_invalid(tmp_path: Path) -> None:
    run = spec(strategy="allreduce", ranks=2, **CUT)
    (tmp_path / "nccl.0.log").write_text("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n")
    promised = job(run, tmp_path, transport_within="P2P")
    found = measured(run)
    for report in found.reports:
        report.backend = "nccl"
    assert judged(job(run, tmp_path), found, manifest()) == ""
    assert "NCCL sent from rank 0 to 1 via SHM/DIRECT/DIRECT" in judged(promised, found, manifest())
    (tmp_path / "nccl.0.log").unlink()
    assert judged(promised, found, manifest()).startswith("which transport NCCL used cannot be checked")


def test_two_ranks_of_a_stream_that_saw_the_same_samples_make_the_run_invalid() -> None:
    for mode, reason in (
        ("stream", "ranks 0 and 1 saw the same samples"),
        ("shards", "rank 0 saw other samples than were planned for it"),
    ):
        run = spec(strategy="allreduce", ranks=2, loader={"mode": mode}, **CUT)
        found = measured(run)
        for report in found.reports:
            report.seen = 7
        assert reason in judged(job(run), found, manifest(640))


def test_ranks_or_attempts_that_decoded_images_in_different_ways_make_the_run_invalid() -> None:
    run = spec(strategy="allreduce", ranks=2, **CUT)
    for second, is_valid in ((["kernel, AVX2"], True), (["plain"], False), (["kernel, AVX2", "plain"], False)):
        found = measured(run, decoders=second)
        found.reports[0].decoders = ["kernel, AVX2"]
        said = judged(job(run), found, manifest())
        assert said == "" if is_valid else "images were decoded in 2 ways (kernel, AVX2; plain)" in said


def test_a_full_run_that_stopped_early_is_invalid() -> None:
    run = spec(train={"epochs": 2})
    assert "10 of 20 steps" in judged(job(run), measured(run), manifest(320))


def test_what_does_not_fit_in_memory_must_be_read_again_each_epoch() -> None:
    mib = 2**20
    data = manifest(size=4 * mib)
    assert expected_read_bytes(spec(loader={"cache": "cold"}), data, 3.0) == 4 * mib
    assert expected_read_bytes(spec(loader={"memory_limit_mib": 1}), data, 3.0) == (4 + 2 * 3) * mib
    assert expected_read_bytes(spec(loader={"memory_limit_mib": 8}), data, 3.0) == 4 * mib
    assert expected_read_bytes(spec(loader={"cache": "cold"}), data, 0.5) == 2 * mib
    assert expected_read_bytes(spec(loader={"cache": "warm"}), data, 3.0) == 0.0
    assert expected_read_bytes(spec(), data, 3.0) is None


def test_auroc_is_known_for_labels_that_have_both_classes() -> None:
    label = np.array([[0, 0], [0, 0], [1, 0], [1, 0]])
    score = np.array([[0.1, 0.0], [0.4, 0.0], [0.35, 0.0], [0.8, 0.0]])
    assert auroc_per_label(score, label) == [pytest.approx(0.75), None]


def scored(score: list[list[float]], label: list[object], run: RunSpec | None = None) -> dict[str, object]:
    """What an evaluation finds of a model that gives these scores."""
    x, y = torch.tensor(score), torch.tensor(label)
    task = "multilabel" if y.ndim == 2 else "classification"
    data = SimpleNamespace(samples=len(x), task=task, batch=lambda indices, **how: (x[indices], y[indices]))
    world = World(0, 1, 0, torch.device("cpu"), 1, None)
    share = np.arange(len(x))
    return evaluate(torch.nn.Identity(), data, share, run or spec(), world, torch.float32)  # type: ignore[arg-type]  # data is a stand-in


OWN = spec(model={"import": "nets:Net"})


@pytest.mark.parametrize(
    ("run", "score", "ignored"),
    [
        (OWN, [[0.5, 0.25]] * 3, True),
        (OWN, [[0.5, 0.25], [0.5000001, 0.25]], True),
        (OWN, [[0.5, 0.25], [0.501, 0.25]], False),
        (OWN, [[0.5, 0.25]], False),
        (spec(), [[0.5, 0.25]] * 3, False),
    ],
    ids=["the same", "but for rounding", "different", "one sample", "a catalogue's model that collapsed"],
)
def test_a_model_of_ones_own_that_says_the_same_of_every_sample_has_no_accuracy(
    run: RunSpec, score: list[list[float]], ignored: bool
) -> None:
    found = scored(score, [0] * len(score), run=run)
    if ignored:
        reason = f"all {len(score)} held-out samples have the same scores"
        assert found["accuracy"] is None and str(found["invalid_reason"]).startswith(reason)
    else:
        assert found["accuracy"] == 1.0


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("score", "label", "reason"),
    [
        ([[NAN, 1.0], [0.0, INFINITE]], [0, 1], "2 of 2 held-out samples have a score that is not finite"),
        ([[0.1], [0.4]], [[0.0], [NAN]], "1 of 2 held-out samples have a label that is not finite"),
        ([[3e38, -3e38], [0.0, 1.0]], [1, 1], "the held-out loss is not finite"),
    ],
)
def test_what_is_not_finite_in_evaluation_has_no_accuracy_or_auroc(
    score: list[list[float]], label: list[object], reason: str
) -> None:
    found = scored(score, label)
    assert found == {"accuracy": None, "auroc": None, "loss": None, "invalid_reason": reason}


@pytest.mark.parametrize("capacity", [0, 1, 37, 64, 72, 511, 512, 123_456])
def test_the_largest_batch_is_found_exactly_up_to_64_and_then_to_within_eight_samples_or_one_percent(
    capacity: int,
) -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= capacity

    found = largest_batch.largest_batch(fits)
    assert found <= capacity < found + (1 if capacity <= 64 else max(8, 0.01 * found))
    assert len(tried) == len(set(tried)) <= capacity.bit_length() + 8


def found_with(monkeypatch: pytest.MonkeyPatch, train: Callable[[int], int]) -> int:
    """The largest batch below 8, where training with a batch does what `train` does, in a process of its own."""
    monkeypatch.setattr(largest_batch, "_train", lambda job, data, limit_bytes, batch: train(batch))
    monkeypatch.setattr(largest_batch, "open_dataset", lambda manifest, split: None)
    monkeypatch.setattr(largest_batch.largest_batch, "__defaults__", (8,))
    return largest_batch.search(job(spec()), None)


def test_a_batch_of_which_a_step_fails_does_not_fit_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    assert found_with(monkeypatch, lambda batch: batch if 1 < batch < 4 else int("x")) == 3
    with pytest.raises(UserError, match=r"with one sample, or with two: its process ended .* -9"):
        found_with(monkeypatch, lambda batch: killed() or 0)
