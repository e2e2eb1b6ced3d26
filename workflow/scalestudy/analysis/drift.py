"""Drift: whether the machine was faster or slower in some rounds than in others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from scalestudy.analysis.stats import CONFIDENCE

DRIFT_LIMIT = 0.02
"""Relative change of a round that is not worth a word, however certain it is."""


@dataclass(frozen=True)
class RoundEffect:
    """By how much all configurations were faster (positive) in one round than in the mean of the rounds, relative."""

    round: int
    effect: float
    low: float
    high: float

    @property
    def drifted(self) -> bool:
        """Whether the interval leaves out 0 by more than the limit."""
        return self.low > DRIFT_LIMIT or self.high < -DRIFT_LIMIT


Value = tuple[str, int, float]
"""Configuration, round and measured value of one run."""


def round_effects(values: Sequence[Value]) -> list[RoundEffect]:
    """The effect of each round; values are positive.

    The model is log value = configuration + round + noise: the effect is the mean over configurations of log x less that
    configuration's mean log x, and its interval follows from what is left over. The intervals hold together for all rounds
    at 95 % (Bonferroni). Configurations count that have a value in every round; of fewer than two nothing is said, for the
    scatter of one and its drift cannot be told apart.
    """
    of_configuration: dict[str, dict[int, float]] = {}
    for name, number, value in values:
        of_configuration.setdefault(name, {})[number] = math.log(value)
    rounds = sorted({number for _, number, _ in values})
    whole = [found for found in of_configuration.values() if len(found) == len(rounds)]
    if len(whole) < 2 or len(rounds) < 2:
        return []
    logs = np.array([[found[number] for number in rounds] for found in whole])
    away = logs - logs.mean(axis=1, keepdims=True)
    effects, freedom = away.mean(axis=0), (len(whole) - 1) * (len(rounds) - 1)
    variance = float(((away - effects) ** 2).sum()) / freedom
    quantile = float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / (2 * len(rounds))))
    half = quantile * math.sqrt(variance * (1 - 1 / len(rounds)) / len(whole))
    return [
        RoundEffect(number, *(math.expm1(value) for value in (effect, effect - half, effect + half)))
        for number, effect in zip(rounds, effects.tolist(), strict=True)
    ]


def with_drift(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` of a study's runs with `drift` and its interval, and whether the round `drifted`."""
    usable = rows[(rows["status"] == "valid") & (rows["throughput_samples_per_s"] > 0)]
    values = zip(usable["configuration"], usable["round"], usable["throughput_samples_per_s"], strict=True)
    effects = {effect.round: effect for effect in round_effects(list(values))}
    none = RoundEffect(0, math.nan, math.nan, math.nan)
    of_row = [effects.get(number, none) for number in rows["round"]]
    for column, name in (("drift", "effect"), ("drift_low", "low"), ("drift_high", "high"), ("drifted", "drifted")):
        rows[column] = [getattr(effect, name) for effect in of_row]
    return rows
