"""Bars, stacked parts of a step, and cost over time; how marks and colours are given."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest

from scalestudy.errors import UserError
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Chart
from scalestudy.figures.kinds import KINDS, draw
from scalestudy.figures.stacked import parts_of
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, SCALING, read_study, write_results
from tests.unit.figures.test_charts import chart, said

PARTS = {"data_s": 0.01, "compute_s": 0.15, "exchange_s": 0.03, "optimiser_s": 0.01}


def with_figure(folder: Path, figure: str) -> Study:
    return read_study(folder, SCALING.replace("{kind: efficiency}", figure), "kinds")


def in_parts(run: Run) -> dict[str, Any]:
    """A step of 0.2 s, so that 32 samples on each rank are 160 samples/s a rank."""
    return {"throughput_samples_per_s": 160.0 * run.spec.ranks, "metrics": {**PARTS}}


def test_every_kind_of_the_model_is_a_row_of_the_table() -> None:
    assert set(KINDS) == set(get_args(FigureSpec.model_fields["kind"].annotation))


def test_bars_stand_on_the_values_that_the_study_sets_even_where_they_are_numbers(study: Study, tmp_path: Path) -> None:
    study = with_figure(tmp_path, "{kind: bars, x: ranks, y: throughput_samples_per_s}")
    write_results(study)

    made = chart(study, "bars")

    assert made.panels[0].x.categories == ("1", "2")
    assert [(point.x, point.n) for point in made.lines[0].points] == [(0.0, 3), (1.0, 3)]
    assert made.lines[0].points[1].low == pytest.approx(158.5328, abs=1e-4)
    assert len(draw(study, MACHINE, "bars")) == 4


def test_the_parts_of_a_step_sum_to_it(study: Study, tmp_path: Path) -> None:
    study = with_figure(tmp_path, "{kind: stacked, x: ranks, where: {strategy: allreduce}}")
    write_results(study, in_parts)

    made = chart(study, "stacked")

    assert made.panels[0].x.categories == ("ring & all_reduce, 1 rank", "ring & all_reduce, 2 ranks")
    assert [line.points[0].y for line in made.lines] == [pytest.approx(part) for part in PARTS.values()]
    assert sum(line.points[0].y for line in made.lines) == pytest.approx(0.2)
    assert said(made, "The parts sum to the mean step")
    assert len(draw(study, MACHINE, "stacked")) == 4


def test_forward_and_backward_take_the_place_of_their_sum() -> None:
    run = {
        "data_s": 0.1,
        "compute_s": 0.9,
        "forward_s": 0.3,
        "backward_s": 0.6,
        "exchange_s": None,
        "optimiser_s": math.nan,
    }
    assert parts_of([run, run]) == {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.6}


def test_an_overlapped_exchange_is_a_part_of_forward_and_backward() -> None:
    run = {"data_s": 0.1, "compute_s": 0.9, "forward_s": 0.3, "backward_s": None, "exchange_s": None}
    assert parts_of([run]) == {"data_s": 0.1, "compute_s": 0.9}


def test_an_exchange_inside_the_backward_pass_is_named(study: Study, tmp_path: Path) -> None:
    study = with_figure(tmp_path, "{kind: stacked, x: ranks}")
    write_results(study, lambda run: {"metrics": {**PARTS, "exchange_s": None}})

    assert said(chart(study, "stacked"), "Exchange overlapped with, and part of, the backward pass: allreduce")


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ("{kind: bars, x: ranks}", "a figure of kind `bars` needs `y`"),
        ("{kind: stacked}", "a figure of kind `stacked` needs `x`"),
        ("{kind: stacked, x: ranks, y: loss}", "a figure of kind `stacked` sets `y` itself"),
        ("{kind: bars, x: step_time_s, y: loss}", "`step_time_s` is measured"),
        ("{kind: bars, x: ranks, y: loss, log_y: true}", "the length of a bar counts from 0"),
    ],
)
def test_what_a_kind_cannot_draw_is_an_error(study: Study, tmp_path: Path, figure: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_figure(tmp_path, figure)


def test_a_series_keeps_its_colour_and_mark_where_others_are_left_out(study: Study, tmp_path: Path) -> None:
    figures = "{kind: throughput_over_ranks, name: one, where: {strategy: parameter_server}}"
    study = with_figure(tmp_path, figures)
    write_results(study)

    both, one = chart(study, "throughput"), chart(study, "one")

    def look(made: Chart) -> tuple[int, int | None]:
        return next((line.style, line.mark) for line in made.lines if line.label == "parameter server")

    assert look(both) == look(one) == (1, 1)
