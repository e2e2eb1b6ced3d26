"""Figures of what results hold beside their metrics: accuracy over time, and the staleness of updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd

from scalestudy.analysis.stats import interval
from scalestudy.figures import notes
from scalestudy.figures.build import SHARE, finished
from scalestudy.figures.catalogue import FigureSpec
from scalestudy.figures.chart import Axis, Chart, Line, Panel, Point
from scalestudy.figures.groups import Group, Row, disturbed, grouped, selected, styles
from scalestudy.results.stored import checked_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.run import is_compute_emulated
from scalestudy.spec.study import Study

MAX_BARS = 16
Evaluations = list[dict[str, Any]]
Shares = dict[int, float]


def accuracy(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """One line per configuration: means over repeats at each evaluation, and a band of their 95 % intervals.

    Runs with emulated compute learn nothing and are left out.
    """
    runs = [row for row in selected(rows, figure.where) if not is_compute_emulated(row)]
    evaluations: dict[str, Evaluations] = _of_results(machine, runs, "evaluations")
    scores = {key for several in evaluations.values() for one in several for key in one if one[key] is not None}
    score = "auroc" if "accuracy" not in scores and "auroc" in scores else "accuracy"
    x = Axis("Time since training began", "s", bool(figure.log_x))
    y = Axis("Held-out accuracy" if score == "accuracy" else "Mean AUROC", "", bool(figure.log_y), limits=SHARE)
    groups = grouped(study, figure, runs)
    panels = []
    for group, lines in _lines(study, figure, groups, evaluations, partial(_curve, score), "band"):
        why = "" if lines else notes.not_yet(group.runs) or "No valid run has this score on held-out data"
        panels.append(Panel(group.title, x, y, lines, blank=why))
    none = Panel("", x, y, (), blank="No run with real compute: emulated compute learns nothing")
    others = sum(all(one.get(score) is None for one in several) for several in evaluations.values())
    left_out = f"Left out, scored by AUROC: {others} runs" if others else ""
    return finished(figure, runs, groups, panels or [none], left_out)


def staleness(study: Study, figure: FigureSpec, rows: pd.DataFrame, machine: str) -> Chart:
    """Bars per configuration, of many values a line: the share of its updates with each staleness, mean over repeats.

    Staleness is the age of the weights that an asynchronous update was computed from. Runs with a synchronous exchange
    have none and are left out.
    """
    asynchronous = {run.id for run in study.runs if not run.spec.strategy.synchronous}
    runs = [row for row in selected(rows, figure.where) if row["run"] in asynchronous]
    counts: dict[str, dict[str, int]] = _of_results(machine, runs, "staleness")
    shares = {
        run: {int(value): count / sum(run_counts.values()) for value, count in run_counts.items()}
        for run, run_counts in counts.items()
    }
    highest = max((value for run_shares in shares.values() for value in run_shares), default=0)
    in_bars = highest < MAX_BARS
    x = Axis("Staleness", "updates", categories=tuple(map(str, range(highest + 1))) if in_bars else ())
    y = Axis("Share of the updates", limits=SHARE)
    groups = grouped(study, figure, runs)
    panels = []
    for group, lines in _lines(study, figure, groups, shares, _distribution, "bar" if in_bars else "series"):
        panels.append(Panel(group.title, x, y, lines, blank="" if lines else notes.not_yet(group.runs)))
    none = Panel("", Axis("Staleness"), y, (), blank="No run with an asynchronous exchange")
    meaning = "Staleness: updates that others made to the weights while a worker computed its gradient"
    return finished(figure, runs, groups, panels or [none], meaning if shares else "")


def _of_results(machine: str, runs: Sequence[Row], key: str) -> dict[str, Any]:
    """A key of the results of valid runs, by run."""
    valid = [row["run"] for row in runs if row["status"] == "valid"]
    run_values = {run: (checked_result(result_file(machine, run), run) or {}).get(key) for run in valid}
    return {run: value for run, value in run_values.items() if value}


def _lines(
    study: Study,
    figure: FigureSpec,
    groups: Sequence[Group],
    run_values: dict[str, Any],
    points_of: Callable[[list[Any], int], tuple[Point, ...]],
    role: Literal["band", "bar", "series"],
) -> Iterator[tuple[Group, tuple[Line, ...]]]:
    """Yield each group with a line per configuration: `points_of` the `run_values` of its repeats."""
    looks = styles(study, figure.series, groups)
    for group in groups:
        lines = []
        for label, members in group.lines.items():
            repeats = [run_values[row["run"]] for row in members if row["run"] in run_values]
            if points := points_of(repeats, disturbed(members)):
                lines.append(Line(label, points, role, *looks[label]))
        yield group, tuple(lines)


def _curve(score: str, repeats: Sequence[Evaluations], marked: int) -> tuple[Point, ...]:
    """Mean time and mean score of each evaluation, over the repeats that have it."""
    by_step: dict[int, Evaluations] = {}
    for evaluation in (one for evaluations in repeats for one in evaluations if one.get(score) is not None):
        by_step.setdefault(evaluation["step"], []).append(evaluation)
    points = []
    for several in by_step.values():
        time = math.fsum(float(evaluation["time_s"]) for evaluation in several) / len(several)
        points.append(_point(time, [float(evaluation[score]) for evaluation in several], marked))
    return tuple(sorted(points, key=lambda point: point.x))


def _distribution(repeats: Sequence[Shares], marked: int) -> tuple[Point, ...]:
    """From staleness 0 to the highest; a value that a repeat lacks has the share 0 there."""
    values = range(max((max(shares) for shares in repeats), default=-1) + 1)
    return tuple(_point(float(value), [shares.get(value, 0.0) for shares in repeats], marked) for value in values)


def _point(x: float, values: list[float], marked: int) -> Point:
    """The mean of values; of its runs, `marked` were disturbed."""
    mean = interval(values)
    assert mean is not None
    return Point(x, mean.mean, mean.low, mean.high, mean.n, repeats=tuple(values), disturbed=marked)
