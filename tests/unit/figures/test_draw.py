"""Drawn files, units and ticks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.kinds import chart_of, draw
from scalestudy.figures.render import render
from scalestudy.figures.style import styled
from scalestudy.spec.labels import quantity
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE, write_results


def test_a_label_is_text_and_never_a_formula(study: Study) -> None:
    label = "$\\frac{1$ a \\$ b 50 % <&> $ \\"
    written = {key: dict.fromkeys(labels, label) for key, labels in study.labels.items()}
    study = replace(study, labels=written, title=label)
    write_results(study)
    summarise(study, MACHINE)

    assert len(draw(study, MACHINE, "exchange")) == 4  # labels on an axis
    with styled():
        render(chart_of(study, MACHINE, study.figure("time"))).draw_without_rendering()  # in a legend


def test_a_caption_is_one_line_of_what_is_drawn_n_and_whiskers_and_notes_follow_it(study: Study) -> None:
    write_results(study, lambda run: {"disturbed": run.id == study.runs[0].id})
    summarise(study, MACHINE)

    first, *rest = draw(study, MACHINE, "throughput")[-1].read_text(encoding="utf-8").splitlines()

    assert first == (
        "Throughput over ranks; n = 3 runs per point (dots); whiskers: 95 % interval of the mean; †: with disturbed runs."
    )
    assert rest == ["†: includes disturbed runs (1 of 12): other processes used the host during them."]


def test_panels_legend_and_title_do_not_overlap(study: Study) -> None:
    write_results(study)
    summarise(study, MACHINE)

    with styled():
        figure = render(replace(chart_of(study, MACHINE, study.figure("time")), title="A long title " * 9))
        figure.draw_without_rendering()
        legend = figure.legends[0].get_window_extent()
        above = max(axes.get_tightbbox().y1 for axes in figure.axes)

    assert above <= legend.y0 and legend.y1 <= figure.bbox.y1


def test_panels_of_bars_have_the_same_numbers_on_their_axes() -> None:
    heights = {"low": 1.0, "high": 2.0}
    panels = [
        Panel(title, Axis("x", categories=("a",)), Axis("y"), (Line("a", (Point(0, height),), "bar"),))
        for title, height in heights.items()
    ]

    with styled():
        low, high = render(Chart("", tuple(panels))).axes

    assert low.get_ylim() == high.get_ylim()
    assert [text.get_text() for text in low.get_yticklabels()] == [text.get_text() for text in high.get_yticklabels()]
    assert "1" in [text.get_text() for text in high.get_yticklabels()]
    assert (low.get_ylabel(), high.get_ylabel()) == ("y", "")


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [(2.5e-5, "s", "25 µs"), (0.004, "s", "4 ms"), (45, "s", "45 s"), (119, "s", "119 s"), (121, "s", "2.02 min"),
     (7200, "s", "2 h"), (604_987, "s", "7 days"), (4.2e9, "B/s", "4.2 GB/s"), (730.0, "B/s", "730 B/s"),
     (3.1e13, "FLOP/s", "31 TFLOP/s"), (2**20, "B", "1 MiB"), (1500.0, "MiB", "1.46 GiB"),
     (1240.4, "samples/s", "1,240 samples/s")],
)  # fmt: skip
def test_times_rates_and_sizes_are_written_in_the_unit_that_suits_them(value: float, unit: str, written: str) -> None:
    assert quantity(value, unit) == written


@pytest.mark.parametrize(("limits", "ticks"), [((1, 1000), [1, 10, 100, 1000]), ((2, 10), [2, 5, 10])])
def test_a_logarithmic_axis_has_few_round_ticks(limits: tuple[float, float], ticks: list[float]) -> None:
    points = tuple(Point(1, value) for value in limits)
    panel = Panel("", Axis("x"), Axis("y", log=True), (Line("a", points),))

    with styled():
        axes = render(Chart("", (panel,))).axes[0]

    low, high = axes.get_ylim()
    assert [tick for tick in axes.get_yticks() if low <= tick <= high] == ticks
