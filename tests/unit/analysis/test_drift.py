"""Drift: found where a round is slower in all configurations, and not where configurations only scatter."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scalestudy.analysis.drift import round_effects


def rounds(table: list[list[float]]) -> list[tuple[str, int, float]]:
    """One row per configuration, one column per round."""
    return [(f"c{row}", column, value) for row, values in enumerate(table) for column, value in enumerate(values)]


def test_the_effect_of_a_round_is_the_mean_over_configurations_of_the_distance_from_their_means() -> None:
    first, second = round_effects(rounds([[100.0, 110.0], [10.0, 11.0], [1.0, 1.1]]))

    # log x differs by log 1.1 between the rounds in each configuration: half of that to each side.
    assert first.effect == pytest.approx(1 / math.sqrt(1.1) - 1)
    assert second.effect == pytest.approx(math.sqrt(1.1) - 1)
    assert first.drifted and second.drifted


def test_one_configuration_cannot_tell_drift_from_scatter() -> None:
    assert round_effects(rounds([[100.0, 110.0, 120.0]])) == []
    assert round_effects([]) == []


def test_configurations_without_a_value_in_every_round_count_for_nothing() -> None:
    whole = rounds([[100.0, 110.0], [10.0, 11.0]])
    assert round_effects([*whole, ("x", 1, 5.0), ("y", 0, 7.0)]) == round_effects(whole)
    assert round_effects([*whole, ("x", 2, 5.0)]) == []


@pytest.mark.parametrize("variation", [0.03, 0.05])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3), (20, 5)])
def test_scatter_without_drift_is_called_drift_in_at_most_five_percent(
    variation: float, shape: tuple[int, int]
) -> None:
    generator, alarms = np.random.default_rng(0), 0
    for _ in range(400):
        found = round_effects(rounds(np.exp(generator.normal(0, variation, shape)).tolist()))
        alarms += any(effect.drifted for effect in found)
    assert alarms <= 20
