"""Bars, stacked parts of a step, and timelines; how marks and colours are given."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.errors import UserError
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart, Line
from scalestudy.figures.kinds import KINDS
from scalestudy.figures.style import bar_look
from scalestudy.results.parts import parts_of
from scalestudy.spec.layout import run_folder
from scalestudy.spec.study import Run, Study
from scalestudy.spec.study_json import write_study
from tests.unit.analysis.fake_results import MACHINE, SCALING, read_study, write_results
from tests.unit.figures.test_charts import chart, is_ring, rendered, said, with_figure

PARTS = {"data_s": 0.01, "compute_s": 0.15, "exchange_s": 0.03, "optimiser_s": 0.01}


def test_every_kind_of_the_model_is_a_row_of_the_table() -> None:
    assert set(KINDS) == set(get_args(FigureSpec.model_fields["kind"].annotation))


def test_bars_stand_on_the_values_that_the_study_sets_even_where_they_are_numbers(study: Study, tmp_path: Path) -> None:
    study = with_figure(tmp_path, "{kind: bars, x: ranks, y: throughput_samples_per_s}")
    write_results(study)

    made = chart(study, "bars")

    assert made.panels[0].x.categories == ("1", "2")
    assert [(point.x, point.n) for point in made.lines[0].points] == [(0.0, 3), (1.0, 3)]
    assert made.lines[0].points[1].low == pytest.approx(158.5328, abs=1e-4)
    rendered(made)


COUNTS_MODULES = """
import sys
from scalestudy.cli import run_command
assert run_command(sys.argv[1:]) == 0
print(sum(name.startswith(("scalestudy", "snakemake_")) for name in sys.modules))
"""


@pytest.mark.slow
def test_bars_are_drawn_without_the_modules_of_other_kinds(study: Study, tmp_path: Path) -> None:
    study = with_figure(tmp_path, "{kind: bars, x: ranks, y: throughput_samples_per_s}")
    write_results(study)
    summarise(study, MACHINE)
    write_study(study, MACHINE)
    words = ["figure", "--machine", MACHINE, "--scale", study.scale, "--study", study.name, "--name", "bars"]
    command = [sys.executable, "-c", COUNTS_MODULES, *words]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) <= 45


def test_the_parts_of_a_step_sum_to_it(study: Study, tmp_path: Path) -> None:
    study = with_figure(tmp_path, "{kind: stacked, x: ranks, where: {strategy: allreduce}}")
    # A step of 0.2 s, so that 32 samples on each rank are 160 samples/s a rank.
    write_results(study, lambda run: {"throughput_samples_per_s": 160.0 * run.spec.ranks, "metrics": {**PARTS}})

    made = chart(study, "stacked")

    assert made.panels[0].x.categories == ("ring & all_reduce, 1 rank", "ring & all_reduce, 2 ranks")
    assert [line.points[0].y for line in made.lines] == [pytest.approx(part) for part in PARTS.values()]
    assert sum(line.points[0].y for line in made.lines) == pytest.approx(0.2)
    assert said(made, "The parts sum to the mean step")
    rendered(made)


def test_forward_and_backward_take_the_place_of_their_sum_where_both_are_known() -> None:
    run = {"data_s": 0.1, "compute_s": 0.9, "forward_s": 0.3, "exchange_s": None, "optimiser_s": math.nan}
    assert parts_of([{**run, "backward_s": 0.6}] * 2) == {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.6}
    assert parts_of([{**run, "backward_s": None}]) == {"data_s": 0.1, "compute_s": 0.9}


def test_an_exchange_inside_the_backward_pass_is_named(study: Study, tmp_path: Path) -> None:
    study = with_figure(tmp_path, "{kind: stacked, x: ranks}")
    write_results(study, lambda run: {"metrics": {**PARTS, "exchange_s": None}})

    assert said(chart(study, "stacked"), "Exchange overlapped with, and part of, the backward pass: allreduce")


def test_of_a_program_the_parts_that_are_known_are_drawn_without_their_sum(study: Study, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    base = '{program: {command: "python train.py {width}", files: [train.py]}, ranks: 2}'
    text = f"question: How?\nbase: {base}\nvary: {{width: [1, 2]}}\nfigures: [{{kind: stacked, x: width}}]\n"
    study = read_study(tmp_path, text, "program")
    write_results(study, lambda run: {"metrics": {"data_s": 0.1, "exchange_s": None}})
    assert [point.y for point in chart(study, "stacked").lines[0].points] == [0.1, 0.1]
    assert not said(chart(study, "stacked"), "Exchange overlapped")


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ("{kind: stacked}", "a figure of kind `stacked` needs `x`"),
        ("{kind: stacked, x: ranks, y: loss}", "a figure of kind `stacked` sets `y` itself"),
        ("{kind: bars, x: step_time_s, y: loss}", "`step_time_s` is measured"),
        ("{kind: bars, x: ranks, y: loss, log_y: true}", "a figure of kind `bars` does not draw `log_y`"),
        ("{kind: accuracy_over_time, reference: a}", "a figure of kind `accuracy_over_time` does not draw `reference`"),
    ],
)
def test_what_a_kind_cannot_draw_is_an_error(study: Study, tmp_path: Path, figure: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_figure(tmp_path, figure)


def test_a_table_of_a_key_is_an_error(study: Study, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`strategy` is not measured"):
        read_study(tmp_path, f"{SCALING}  - {{name: wrong, values: [strategy]}}\n", "tables")


def test_a_series_keeps_its_colour_and_mark_where_others_are_left_out(study: Study, tmp_path: Path) -> None:
    figures = "{kind: throughput_over_ranks, name: one, where: {strategy: parameter_server}}"
    study = with_figure(tmp_path, figures)
    write_results(study)

    both, one = chart(study, "throughput"), chart(study, "one")

    def look(made: Chart) -> tuple[int, int | None]:
        return next((line.style, line.mark) for line in made.lines if line.label == "parameter server")

    assert look(both) == look(one) == (1, 1)


def test_bars_of_one_series_that_differ_in_something_else_have_one_colour_and_hatchings_of_their_own() -> None:
    automatic, two_stages = (
        bar_look(Line(label, (), "bar", 1, mark)) for label, mark in (("automatic", 1), ("two", 2))
    )
    assert automatic["facecolor"] == two_stages["facecolor"]
    assert automatic["hatch"] != two_stages["hatch"]


TIMELINE = "{kind: timeline, where: {ranks: 2}}"
INTERVALS = [
    (0, "step", 0.0, 0.1), (0, "step", 0.1, 0.2), (0, "step", 0.2, 0.3), (0, "step", 0.3, 0.4),
    (0, "computes", 0.0, 0.06), (0, "computes", 0.1, 0.16), (0, "computes", 0.3, 0.35), (0, "exchange", 0.05, 0.1),
    (1, "step", 0.01, 0.1), (1, "computes", 0.02, 0.065), (1, "exchange", 0.065, 0.1),
]  # fmt: skip
"""Four steps of rank 0, of which three are drawn, and one of rank 1."""


@pytest.fixture
def traced(study: Study, tmp_path: Path) -> Study:
    """A study of which the runs with `allreduce` are traced: the second repeat has the median step."""
    study = with_figure(tmp_path, TIMELINE)

    def metrics(run: Run) -> dict[str, object]:
        seconds = {0: 0.2, 1: 0.1, 2: 0.05}[run.spec.repeat]
        hidden = {"exchange_hidden": 0.25, "bare_transfer_s": 0.002, "bare_wait_s": 0.001}
        return {"metrics": {"traced_step_s": seconds, "step_time_s": 0.08, **hidden} if is_ring(run) else {}}

    write_results(study, metrics)
    for run in study.runs:
        table = pd.DataFrame(INTERVALS, columns=["rank", "row", "begin_s", "end_s"])
        table.to_parquet(run_folder(MACHINE, run.id) / "timeline.parquet")
    return study


def test_rows_of_each_rank_hold_the_first_steps_of_the_median_run(traced: Study) -> None:
    made = chart(traced, "timeline")

    panel, untraced = made.panels
    assert [(track.label, track.beside) for track in panel.tracks] == [
        ("rank 0: computes", "40 %"), ("exchange", "17 %"), ("rank 1: computes", "50 %"), ("exchange", "39 %"),
    ]  # fmt: skip
    assert panel.tracks[0].spans[1] == (pytest.approx(0.1), pytest.approx(0.16))
    assert panel.x.limits == (0.0, pytest.approx(0.3))
    assert untraced.blank == "No valid run was traced"
    assert said(
        made, "computation hides 25 % of the exchange; of a step nothing hides 2 ms of exchange and 1 ms of waiting"
    )
    assert said(made, "a traced step takes 1.25 times one of the window")
    rendered(made)
