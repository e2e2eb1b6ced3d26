"""Drift: found where a round is slower in all configurations, and not where configurations only scatter."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from scalestudy.analysis.drift import DRIFT_LIMIT, RATE, round_effects, with_drift


def rows(table: list[list[float]], *more: tuple[str, int, float]) -> pd.DataFrame:
    """A valid run for each value: one row per configuration, one column per round; and for `more` of them."""
    values = [(f"c{row}", column, value) for row, values in enumerate(table) for column, value in enumerate(values)]
    return pd.DataFrame([*values, *more], columns=["configuration", "round", RATE]).assign(status="valid")


def test_the_effect_of_a_round_is_the_mean_over_configurations_of_the_distance_from_their_means() -> None:
    found = with_drift(rows([[100.0, 110.0], [10.0, 11.0], [1.0, 1.1]]))

    # log x differs by log 1.1 between the rounds in each configuration: half of that to each side.
    assert found["drift"].tolist() == pytest.approx(3 * [1 / math.sqrt(1.1) - 1, math.sqrt(1.1) - 1])
    assert found["drifted"].all()


def test_one_configuration_cannot_tell_drift_from_scatter() -> None:
    for found in (with_drift(rows([[100.0, 110.0, 120.0]])), with_drift(rows([[100.0], [10.0]]))):
        assert found["drift"].isna().all() and not found["drifted"].any()
    assert with_drift(rows([[100.0, 110.0], [10.0, 11.0]]).assign(status="invalid"))["drift"].isna().all()


def test_configurations_without_a_value_in_every_round_count_for_nothing() -> None:
    table = [[100.0, 110.0], [10.0, 11.0]]
    found = with_drift(rows(table, ("x", 1, 5.0), ("y", 0, 7.0)))
    assert found["drift_low"][:4].tolist() == with_drift(rows(table))["drift_low"].tolist()
    assert with_drift(rows(table, ("x", 2, 5.0)))["drift"].isna().all()


@pytest.mark.parametrize("variation", [0.03, 0.05])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3), (20, 5)])
def test_scatter_without_drift_is_called_drift_in_at_most_five_percent(
    variation: float, shape: tuple[int, int]
) -> None:
    generator, alarms = np.random.default_rng(0), 0
    for _ in range(400):
        effects = round_effects(np.exp(generator.normal(0, variation, shape)))
        alarms += any(low > DRIFT_LIMIT or high < -DRIFT_LIMIT for _, low, high in effects)
    assert alarms <= 20
