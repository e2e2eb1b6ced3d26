"""What charts show, before they are drawn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.figures.chart import Chart, Line
from scalestudy.figures.kinds import chart_of
from scalestudy.figures.render import render
from scalestudy.figures.style import styled
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import INSTRUMENT, MACHINE, SCALING, read_study, write_results


def chart(study: Study, name: str) -> Chart:
    summarise(study, MACHINE)
    return from_summary(study, name)


def from_summary(study: Study, name: str) -> Chart:
    """A further chart of the same results."""
    return chart_of(study, MACHINE, study.figure(name))


def with_figure(folder: Path, figure: str, text: str = SCALING) -> Study:
    """The study of that text with a figure in place of its efficiencies."""
    return read_study(folder, text.replace("{kind: efficiency}", figure))


def is_ring(run: Run) -> bool:
    return run.spec.strategy.name == "allreduce"


def series(chart: Chart, label: str) -> Line:
    return next(line for line in chart.lines if line.label == label)


def rendered(chart: Chart) -> None:
    """Draw it, into no file."""
    with styled():
        render(chart).draw_without_rendering()


def said(chart: Chart, words: str) -> bool:
    return any(words in note for note in chart.notes)


def test_invalid_skipped_and_missing_runs_are_counted_with_their_reasons_and_not_drawn(study: Study) -> None:
    def change(run: Run) -> dict[str, Any] | None:
        if run.spec.strategy.name != "allreduce" or run.spec.ranks != 2:
            return {}
        return [{"status": "invalid", "reason": "bad loss"}, {"status": "skipped", "reason": "no GPU"}, None][
            run.spec.repeat
        ]

    write_results(study, change)

    made = chart(study, "time")

    assert [point.x for point in series(made, "ring & all_reduce").points] == [1.0]
    assert said(made, "3 of 12 runs missing: 1 invalid (bad loss), 1 skipped (no GPU), 1 not run")


def test_extrapolated_times_are_points_of_their_own_kind(study: Study) -> None:
    write_results(study, lambda run: {"kinds": {"training_time_s": "extrapolated"}} if run.spec.ranks == 2 else {})

    made = chart(study, "time")

    assert [point.kind for point in series(made, "ring & all_reduce").points] == ["measured", "extrapolated"]
    assert said(made, "Extrapolated: the full training, from a measured window")
    assert {point.kind for point in series(from_summary(study, "throughput"), "ring & all_reduce").points} == {
        "measured"
    }


def test_a_single_extrapolated_run_has_no_interval_and_the_note_says_how_uncertain_it_is(study: Study) -> None:
    own = {"kinds": {"training_time_s": "extrapolated"}, "intervals": {"training_time_s": [95.0, 105.0]}}
    measured = {**own, "metrics": {"training_time_s": 100.0}}
    write_results(study, lambda run: None if run.spec.repeat else measured)

    made = chart(study, "time")
    points = series(made, "ring & all_reduce").points
    assert [(point.n, point.low, point.high, point.kind) for point in points] == [(1, None, None, "extrapolated")] * 2
    assert said(made, "from a measured window, which alone is uncertain by up to ±5 %")


def test_of_times_that_some_runs_never_reached_no_mean_of_the_others_is_drawn(study: Study, tmp_path: Path) -> None:
    drawn = "{kind: lines, name: reached, x: ranks, y: time_to_accuracy_s}"
    study = with_figure(tmp_path, drawn, f"{SCALING}target_accuracy: 0.75\n")
    below = [{"epoch": 1, "step": 10, "time_s": 9.0, "accuracy": 0.6}]
    is_slow = next(run.id for run in study.runs if is_ring(run) and run.spec.ranks == 2)
    write_results(study, lambda run: {"evaluations": below} if run.id == is_slow else {})

    made = chart(study, "reached")

    assert {line.label: len(line.points) for line in made.lines} == {"ring & all_reduce": 1, "parameter server": 2}
    assert said(made, "Configurations with runs that ended without reaching it are not drawn: 1 run")


def test_efficiency_prints_its_formula_and_baseline_and_leaves_shared_cores_out(study: Study, tmp_path: Path) -> None:
    three = read_study(tmp_path, SCALING.replace("ranks: [1, 2]", "ranks: [1, 2, 4]"), "three")
    write_results(three, lambda run: {"oversubscribed": run.spec.ranks == 4})

    made = chart(three, "efficiency")

    assert [point.x for point in series(made, "ring & all_reduce").points] == [1.0, 2.0]
    assert said(made, "Weak scaling (the batch of a rank is fixed): X(N)·N₀ / (N·X(N₀))")
    assert said(made, "Base: 71.4 samples/s on one rank (N₀ = 1), mean of 6 runs of all series at their fewest ranks")
    assert said(made, "Left out, more threads than cores: 4 ranks")


def test_ranks_that_share_cores_are_shaded_and_bars_of_numbers_ascend_for_that(study: Study, tmp_path: Path) -> None:
    study = read_study(tmp_path, SCALING.replace("ranks: [1, 2]", "ranks: [2, 1]"))
    write_results(study, lambda run: {"oversubscribed": run.spec.ranks == 2})

    assert chart(study, "time").panels[0].shaded_from == 2.0
    made = from_summary(study, "throughput")
    assert (made.panels[0].x.categories, made.panels[0].shaded_from) == (("1", "2"), 1.0)
    rendered(made)


def test_runs_with_a_server_that_share_cores_beside_others_that_do_not_are_named(study: Study) -> None:
    write_results(study, lambda run: {"oversubscribed": "server" in run.spec.strategy.name and run.spec.ranks == 2})

    made = chart(study, "time")

    assert made.panels[0].shaded_from is None
    assert said(made, "Not shaded, though they share cores: parameter server on 2 ranks")


def test_published_numbers_for_the_same_question_are_drawn_with_their_source(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace("small_cnn", "resnet50").replace("epochs: 15", "epochs: 90")
    same = read_study(tmp_path, text.replace("source: digits", "source: imagenet"), "same")
    gpu = {"instrument": {**INSTRUMENT, "device_name": "Tesla P100-SXM2-16GB"}}
    rate: dict[str, Any] = {"throughput_samples_per_s": 200.0, "metrics": {"epoch_time_s": 1_280_000 / 200}}
    write_results(same, lambda run: {**rate, **gpu})

    made = chart(same, "time")

    published = next(line for line in made.lines if line.role == "published")
    assert [(point.x, point.y) for point in published.points] == [(1, 604987), (4, 154931), (32, 44862), (128, 135905)]
    assert "Table 2, row (a)" in made.sources[0]
    rendered(made)
    assert said(made, "1 and 4 GPUs extrapolated by the authors")

    rate["metrics"] |= {"training_time_s": None}
    write_results(same, lambda run: {**rate, **gpu})
    made = chart(same, "time")
    assert said(made, "are not drawn: ")
    assert not any(note.startswith("Published: ") for note in made.notes)


def test_models_get_panels_and_emulation_is_in_their_titles(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace(
        "repeats: 3", 'zip: {model: [small_cnn, resnet50], device: [cpu, "emulated:p100"]}\nrepeats: 1'
    )
    two = read_study(tmp_path, text, "two")
    write_results(two)

    made = chart(two, "throughput")

    assert [panel.title for panel in made.panels] == ["small_cnn", "resnet50, compute emulated"]
    assert said(made, "Emulated compute waits")
    rendered(made)


def test_a_value_that_is_no_number_has_its_place_on_an_axis_of_numbers(study: Study, tmp_path: Path) -> None:
    drawn = "{kind: lines, name: cache, x: loader.memory_limit_mib, y: throughput_samples_per_s}"
    limits = "loader.memory_limit_mib: [null, 64, 256]"
    images = SCALING.replace("source: digits", "source: synthetic_jpeg")
    study = with_figure(tmp_path, drawn, images.replace("ranks: [1, 2]", limits))
    write_results(study)

    made = chart(study, "cache")

    assert made.panels[0].x.categories == ("no limit", "64", "256")
    assert [point.x for point in series(made, "ring & all_reduce").points] == [0.0, 1.0, 2.0]


def test_lines_of_a_measured_column_leave_out_runs_that_have_not_measured_it(study: Study, tmp_path: Path) -> None:
    drawn = "{kind: lines, name: step, x: ranks, y: step_time_s, series: stages}"
    study = with_figure(tmp_path, drawn)
    measured = {"metrics": {"step_time_s": 2.0, "stages": 2.0}}
    write_results(study, lambda run: measured if is_ring(run) else None)
    assert [line.label for line in chart(study, "step").lines] == ["stages 2"]
    write_results(study, lambda run: {"status": "invalid", "reason": "bad loss"})
    assert chart(study, "step").panels[0].blank.startswith("No valid run yet: 12 invalid")


def test_an_efficiency_of_series_that_are_left_out_is_blank(study: Study, tmp_path: Path) -> None:
    alone = SCALING.replace("repeats: 3", "include: [{strategy: single, ranks: 1}]\nrepeats: 3")
    study = with_figure(tmp_path, "{kind: efficiency, where: {strategy: single}}", alone)
    write_results(study)
    made = chart(study, "efficiency")
    assert made.panels[0].blank == "No run belongs into this figure"
    rendered(made)


def test_a_prediction_is_drawn_hollow_under_the_name_of_what_it_predicts(study: Study, tmp_path: Path) -> None:
    drawn = "{kind: lines, name: step, x: ranks, y: step_time_s, prediction: predicted_step_time_s}"
    study = with_figure(tmp_path, drawn)
    write_results(
        study, lambda run: {"metrics": {"step_time_s": 2.0} | ({"predicted_step_time_s": 1.5} if is_ring(run) else {})}
    )

    made = chart(study, "step")

    lines = [(line.label, line.points[0].y, line.points[0].kind) for line in made.lines]
    assert lines == [
        ("ring & all_reduce", pytest.approx(1.5), "predicted"),
        ("ring & all_reduce", pytest.approx(2.0), "measured"),
        ("parameter server", pytest.approx(2.0), "measured"),
    ]
    assert len({line.style for line in made.lines[:2]}) == 1
    assert said(made, "Predicted: before the first step")


def test_curves_are_drawn_over_elapsed_time_with_the_interval_of_the_repeats(study: Study) -> None:
    def change(run: Run) -> dict[str, Any]:
        accuracy = [0.7, 0.8, 0.9][run.spec.repeat]
        return {"evaluations": [{"epoch": 1, "step": 5, "time_s": 2.0 + run.spec.repeat, "accuracy": accuracy}]}

    write_results(study, change)

    point = series(chart(study, "accuracy"), "ring & all_reduce, 2 ranks").points[0]

    # 0.7, 0.8, 0.9: half width 0.1 · 2.484138
    assert (point.x, point.y, point.n) == (3.0, pytest.approx(0.8), 3)
    assert (point.low, point.high) == (pytest.approx(0.5515862), pytest.approx(1.0484138))


def test_runs_with_another_score_than_the_one_that_is_drawn_are_counted(study: Study) -> None:
    def change(run: Run) -> dict[str, Any]:
        return {"evaluations": [{"step": 5, "time_s": 2.0, "accuracy" if is_ring(run) else "auroc": 0.7}]}

    write_results(study, change)

    made = chart(study, "accuracy")

    assert {line.label.partition(",")[0] for line in made.lines} == {"ring & all_reduce"}
    assert said(made, "Left out, scored by AUROC: 6 runs")


def test_staleness_is_the_share_of_updates_with_each_value_over_the_asynchronous_runs(
    study: Study, tmp_path: Path
) -> None:
    names = "{value: async_parameter_server, label: asynchronous}, allreduce"
    text = SCALING.replace("  - {kind: efficiency}", "  - {kind: efficiency}\n  - {kind: staleness}")
    study = read_study(tmp_path, re.sub(r"strategy: \[.*\]", f"strategy: [{names}]", text))

    def change(run: Run) -> dict[str, Any]:
        if run.spec.strategy.synchronous:
            return {"staleness": None}
        return {"staleness": [{"0": 3, "2": 1}, {"0": 1, "1": 1}, {"0": 4}][run.spec.repeat]}

    write_results(study, change)

    made = chart(study, "staleness")

    assert {line.label.partition(",")[0] for line in made.lines} == {"asynchronous"}
    points = made.lines[0].points
    assert [(point.x, point.y) for point in points] == [
        (0.0, 0.75),
        (1.0, pytest.approx(1 / 6)),
        (2.0, pytest.approx(1 / 12)),
    ]
    assert [point.n for point in points] == [3, 3, 3]
    assert said(made, "Staleness: updates that others made")


def test_mixed_instruments_and_drift_are_said(study: Study) -> None:
    def change(run: Run) -> dict[str, Any]:
        rate = [100.0, 100.0, 80.0][run.spec.repeat] + run.spec.ranks
        return {"throughput_samples_per_s": rate, "instrument": {**INSTRUMENT, "torch": f"2.{run.spec.ranks}"}}

    write_results(study, change)

    made = chart(study, "time")

    assert said(made, "Instruments mixed: torch 2.1 / 2.2")
    assert said(made, "Drift: in round 3 throughput differs by -13.6")

    def switched(run: Run) -> dict[str, Any]:
        return {"instrument": {**INSTRUMENT, **({"environment": "NCCL_ALGO=Ring"} if run.spec.ranks > 1 else {})}}

    write_results(study, switched)
    assert said(chart(study, "time"), "Instruments mixed: environment NCCL_ALGO=Ring / none")


@pytest.mark.parametrize(("again", "mixed"), [("b", False), ("c", True)])
def test_data_that_a_study_varies_is_no_mixed_instrument(study: Study, tmp_path: Path, again: str, mixed: bool) -> None:
    """Of each preprocessing, all runs have the same data, or one of them does not."""
    varied = SCALING.replace("  ranks: [1, 2]", "  ranks: [1, 2]\n  data.shard.mib: [1, 2]")
    study = read_study(tmp_path, varied.replace("source: digits", "source: synthetic_jpeg, shard: {format: tar}"))

    def change(run: Run) -> dict[str, Any]:
        data = "a" if run.spec.data.to_dict()["shard"]["mib"] == 1 else again if run.spec.repeat else "b"
        return {"instrument": {**INSTRUMENT, "data": data}}

    write_results(study, change)

    assert said(chart(study, "exchange"), "Instruments mixed: data") is mixed


def test_ideal_scaling_starts_at_the_mean_of_the_runs_without_exchange_and_not_at_the_best(
    study: Study, tmp_path: Path
) -> None:
    text = SCALING.replace("allreduce, label", "ring, label").replace(", parameter_server]", ", halving_doubling]")
    text = text.replace("ranks: [1, 2]", "ranks: [1, 2, 4]")
    equal = read_study(tmp_path, text, "equal")
    rates = {"ring": 100.0, "halving_doubling": 121.0}
    write_results(equal, lambda run: {"throughput_samples_per_s": rates[run.spec.strategy.name] * run.spec.ranks})

    made = chart(equal, "throughput")
    ideal = next(line for line in made.lines if line.role == "ideal")

    assert [point.y for point in ideal.points] == [pytest.approx(110.0), pytest.approx(440.0)]
    assert said(made, "mean of 6 runs without exchange (ring; halving doubling)")
