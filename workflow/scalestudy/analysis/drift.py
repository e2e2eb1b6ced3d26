"""Drift: whether the machine was faster or slower in some rounds than in others."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from scalestudy.analysis.stats import CONFIDENCE

DRIFT_LIMIT = 0.02
"""Relative change of a round that is not worth a word, however certain it is."""
RATE = "throughput_samples_per_s"


def round_effects(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """[rounds, 3]: by how much all configurations were faster (positive) in one round than in the mean of the rounds,
    relative, and the interval of that; `rates` [configurations, rounds] are positive.

    The model is log rate = configuration + round + noise: the effect is the mean over configurations of log x less that
    configuration's mean log x, and its interval follows from what is left over. The intervals hold together for all rounds
    at 95 % (Bonferroni). Of fewer than two configurations nothing is said (NaN), for the scatter of one and its drift
    cannot be told apart.
    """
    configurations, rounds = rates.shape
    if configurations < 2 or rounds < 2:
        return np.full((rounds, 3), math.nan)
    logs = np.log(rates)
    away = logs - logs.mean(axis=1, keepdims=True)
    effects, freedom = away.mean(axis=0), (configurations - 1) * (rounds - 1)
    variance = float(((away - effects) ** 2).sum()) / freedom
    quantile = float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / (2 * rounds)))
    half = quantile * math.sqrt(variance * (1 - 1 / rounds) / configurations)
    relative: NDArray[np.float64] = np.expm1(np.column_stack([effects, effects - half, effects + half]))
    return relative


def with_drift(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` of a study's runs with `drift` and its interval, and whether the round `drifted`: the interval leaves out 0 by
    more than the limit. Configurations count that have a valid run in every round.
    """
    usable = rows[(rows["status"] == "valid") & (rows[RATE] > 0)]
    rates = usable.pivot(index="configuration", columns="round", values=RATE).dropna()
    effects = pd.DataFrame(round_effects(rates.to_numpy(float)), index=rates.columns)
    rows[["drift", "drift_low", "drift_high"]] = effects.reindex(rows["round"]).to_numpy()
    rows["drifted"] = (rows["drift_low"] > DRIFT_LIMIT) | (rows["drift_high"] < -DRIFT_LIMIT)
    return rows
