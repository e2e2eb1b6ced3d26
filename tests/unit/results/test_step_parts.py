"""Whose time a step's parts are, and how many samples ranks train in a second, in steps that are made up."""

from __future__ import annotations

import numpy as np
import pytest

from scalestudy.results.metrics import STEPS_TOGETHER, parts_of_steps, speed
from scalestudy.results.records import Measured
from scalestudy.training.report import Report
from tests.unit.test_training import job, manifest, spec


def marks_of(steps: list[list[float]]) -> np.ndarray:
    """[steps, 7] of one rank whose steps follow each other without a gap, each divided as given."""
    ends = np.cumsum(steps).reshape(len(steps), 6)
    begins = np.concatenate([[0.0], ends[:-1, -1]])
    return np.column_stack([begins, ends])


def test_the_published_example() -> None:
    # Data 10 and 60, forward 5 and 5, backward 55 and 5 ms: the largest of each would sum to 120.
    marks = np.stack([marks_of([[10, 0, 5, 55, 0, 0]]), marks_of([[60, 0, 5, 5, 0, 0]])])
    assert parts_of_steps(marks, [slice(0, 1)]).tolist() == [[60, 0, 5, 5, 0, 0]]


def test_the_parts_sum_to_the_window_though_ranks_leave_each_exchange_in_another_order() -> None:
    rng, steps = np.random.default_rng(0), 1000
    # Every exchange ends for all at the same moment, but each rank notices it up to 1 ms later.
    noticed = np.arange(1, steps + 1) * 10.0 + rng.uniform(0.0, 1.0, (4, steps))
    begins = np.concatenate([np.zeros((4, 1)), noticed[:, :-1]], axis=1)
    entries = begins + rng.uniform(3.0, 5.0, (4, steps))
    marks = np.stack([begins, begins, begins, begins, entries, noticed, noticed], axis=2)
    window = float((marks[:, -1, -1] - marks[:, 0, 0]).max())
    together = parts_of_steps(marks, [slice(0, steps)]).sum()
    assert together == pytest.approx(window, rel=0.001)
    one_by_one = sum(parts_of_steps(marks, [slice(step, step + 1)]).sum() for step in range(steps))
    assert one_by_one > 1.04 * window


def test_clocks_that_drift_apart_do_not_make_the_fast_clocks_rank_own_every_phase() -> None:
    fast, slow = [1.0, 0, 2, 3, 6, 1], [1.0, 0, 2, 7, 2, 1]
    steps = 500 * STEPS_TOGETHER
    marks = np.stack([marks_of([fast] * steps) * (1 + 20e-6), marks_of([slow] * steps)])
    parts = parts_of_steps(marks, [slice(0, steps)]).mean(axis=0)
    assert parts == pytest.approx([1.0, 0, 2, 7, 2, 1], abs=0.05)


@pytest.mark.parametrize(
    ("strategy", "rate"), [("parameter_server", 2 * 32 / 0.3), ("async_parameter_server", 32 / 0.1 + 32 / 0.3)]
)
def test_a_slow_rank_holds_up_ranks_that_wait_for_it_and_no_others(strategy: str, rate: float) -> None:
    marks = np.stack([marks_of([[step_s, 0, 0, 0, 0, 0]] * 10) for step_s in (0.1, 0.3)])
    measured = Measured([Report(rank, window=(0, 10)) for rank in range(2)], marks, np.zeros((2, 10)))
    values = speed(job(spec(strategy=strategy, ranks=2, batch={"per_rank": 32})), measured, manifest(6400))
    assert values["throughput_samples_per_s"] == pytest.approx(rate)
    assert values["epoch_time_s"] == pytest.approx(6400 / rate)
