"""The extrapolated training time: by hand, on made-up series of known variance, and on recorded runs."""

from __future__ import annotations

import numpy as np
import pytest

from scalestudy.results.extrapolate import Cost, long_run_variance, training_time
from tests.soak.extrapolation import MOST_HALF_WIDTH, NEEDED, RECORDING, judge


def test_steps_evaluations_and_checkpoints_are_counted_as_often_as_they_are_to_come() -> None:
    found = training_time(5.0, np.full(50, 0.1), 1000, [Cost([2.0, 4.0], 10), Cost([0.5], 4), Cost([], 0)])
    assert found.value == pytest.approx(5.0 + 100.0 + 30.0 + 2.0)
    assert found.low is not None and found.high is not None and found.low < found.value < found.high


def test_steps_that_never_vary_leave_two_percent_for_what_minutes_do_not_show() -> None:
    found = training_time(10.0, np.full(100, 0.1), 900, [])
    assert found.half_width == pytest.approx(1.8)


def test_too_few_steps_give_a_value_and_no_interval() -> None:
    found = training_time(0.5, np.full(5, 0.1), 100, [])
    assert (found.value, found.low, found.high) == (pytest.approx(10.5), None, None)


def test_steps_that_are_alike_for_a_while_are_not_taken_for_independent_ones() -> None:
    noise = np.random.default_rng(0).normal(size=200_000)
    # x[t] = 0.9 x[t-1] + e[t]: variance 1 / (1 - 0.81) = 5.26, long-run variance 1 / (1 - 0.9)**2 = 100.
    steps = np.zeros_like(noise)
    for step in range(1, len(noise)):
        steps[step] = 0.9 * steps[step - 1] + noise[step]
    estimates = [long_run_variance(part)[0] for part in steps.reshape(100, 2000)]
    assert np.median(estimates) == pytest.approx(100.0, rel=0.3)


def test_the_interval_of_a_part_holds_the_whole_as_often_as_it_says() -> None:
    steps = 0.1 + 0.02 * np.random.default_rng(1).standard_exponential((400, 1000))
    held = [
        found.low <= whole.sum() <= found.high
        for whole in steps
        if (found := training_time(whole[:100].sum(), whole[:100], 900, [])).low is not None and found.high is not None
    ]
    assert len(held) == 400 and 0.93 <= np.mean(held) <= 1.0


@pytest.mark.skipif(not RECORDING.exists(), reason="nothing is recorded yet: python -m tests.soak.extrapolation record")
def test_recorded_runs_took_what_was_said_after_their_first_tenth() -> None:
    judged = judge()
    assert len(judged) == 40 and min(each.true_s for each in judged) >= 120
    assert sum(each.holds for each in judged) >= NEEDED
    assert max(each.half_width for each in judged) <= MOST_HALF_WIDTH
