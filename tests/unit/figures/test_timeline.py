"""Rows of a timeline, from a table of intervals."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from scalestudy.figures.kinds import draw
from scalestudy.spec.layout import run_folder
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, SCALING, read_study, write_results
from tests.unit.figures.test_charts import chart, is_ring, said

FIGURE = "{kind: timeline, where: {ranks: 2}}"
INTERVALS = [
    (0, "step", 0.0, 0.1), (0, "step", 0.1, 0.2), (0, "step", 0.2, 0.3), (0, "step", 0.3, 0.4),
    (0, "computes", 0.0, 0.06), (0, "computes", 0.1, 0.16), (0, "computes", 0.3, 0.35), (0, "exchange", 0.05, 0.1),
    (1, "step", 0.01, 0.1), (1, "computes", 0.02, 0.065), (1, "exchange", 0.065, 0.1),
]  # fmt: skip
"""Four steps of rank 0, of which three are drawn, and one of rank 1."""


@pytest.fixture
def traced(study: Study, tmp_path: Path) -> Study:
    """A study of which the runs with `allreduce` are traced: the second repeat has the median step."""
    study = read_study(tmp_path, SCALING.replace("{kind: efficiency}", FIGURE), "traced")

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


def test_a_timeline_is_drawn(traced: Study) -> None:
    chart(traced, "timeline")
    assert len(draw(traced, MACHINE, "timeline")) == 4
