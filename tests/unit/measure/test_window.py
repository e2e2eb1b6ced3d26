"""How precisely a window knows its mean step, and whether it was steady."""

from __future__ import annotations

import numpy as np
import pytest

from scalestudy.measure.window import change_of_halves, relative_half_width


def alike(rng: np.random.Generator, steps: int, correlation: float, spread: float) -> np.ndarray:
    """Steps of mean 1 of which neighbours are alike: a first-order autoregressive process."""
    level, found = rng.normal(), np.empty(steps)
    for step in range(steps):
        found[step] = 1 + spread * level
        level = correlation * level + np.sqrt(1 - correlation**2) * rng.normal()
    return found


@pytest.mark.parametrize(("steps", "correlation"), [(20, 0.0), (40, 0.0), (40, 0.5), (200, 0.8)])
def test_the_interval_holds_the_true_mean_step_though_steps_come_in_spells(steps: int, correlation: float) -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        window = alike(rng, steps, correlation, 0.1)
        half_width = relative_half_width(window)
        held += abs(window.mean() - 1) <= half_width * window.mean()
    assert held / 400 >= 0.92


def test_of_seven_steps_nothing_is_said() -> None:
    assert relative_half_width(np.full(7, 0.1)) is None
    assert relative_half_width(np.full(8, 0.1)) == 0.0
    assert change_of_halves(np.full(15, 0.1)) is None
