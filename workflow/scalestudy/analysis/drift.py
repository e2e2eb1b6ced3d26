"""Drift: whether the machine was faster or slower in some rounds than in others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
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

    The model is log value = configuration + round + noise, fitted by least squares. Where every configuration was
    measured in every round this is, for each round, the mean over configurations of log x less that configuration's
    mean log x. The intervals hold together for all rounds at 95 % (Bonferroni). Rounds are compared with those that
    configurations tie them to; there is no effect where one configuration alone does, for its scatter and drift
    cannot be told apart.
    """
    tied = _tied(values)
    most = sum(len({number for _, number, _ in part}) for part in tied)
    return sorted((effect for part in tied for effect in _fitted(part, most)), key=lambda effect: effect.round)


def _tied(values: Sequence[Value]) -> list[list[Value]]:
    """The values in parts that share neither a configuration nor a round."""
    if not values:
        return []
    nodes: dict[str | int, int] = {}
    edges = [[nodes.setdefault(node, len(nodes)) for node in (name, number)] for name, number, _ in values]
    names, numbers = np.transpose(edges)
    graph = coo_array((np.ones(len(edges)), (names, numbers)), (len(nodes), len(nodes)))
    _, part_of = connected_components(graph, directed=False)
    parts: dict[int, list[Value]] = {}
    for value, (node, _) in zip(values, edges, strict=True):
        parts.setdefault(int(part_of[node]), []).append(value)
    return list(parts.values())


def _fitted(values: Sequence[Value], most: int) -> list[RoundEffect]:
    names, of_run = np.unique([name for name, _, _ in values], return_inverse=True)
    rounds, round_of_run = np.unique([number for _, number, _ in values], return_inverse=True)
    freedom = len(values) - len(names) - (len(rounds) - 1)
    if freedom < 1 or len(rounds) < 2:
        return []
    # Configurations are taken out by their means (Frisch and Waugh 1933), so that only rounds are left to fit.
    logs = _within(np.log([[value] for _, _, value in values]), of_run)
    design = _within(np.eye(len(rounds))[round_of_run], of_run)
    inverse = np.linalg.pinv(design.T @ design)
    fitted = inverse @ design.T @ logs
    variance = float(((logs - design @ fitted) ** 2).sum()) / freedom
    quantile = float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / (2 * most)))
    effects = []
    for index, number in enumerate(rounds.tolist()):
        contrast = np.eye(len(rounds))[index] - 1 / len(rounds)
        effect = float((contrast @ fitted)[0])
        half = quantile * math.sqrt(variance * float(contrast @ inverse @ contrast))
        effects.append(RoundEffect(number, *(math.expm1(value) for value in (effect, effect - half, effect + half))))
    return effects


def _within(columns: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Each value less the mean of its group: `columns` is [values, columns], `group` [values]."""
    sums = np.zeros((int(group.max()) + 1, columns.shape[1]))
    np.add.at(sums, group, columns)
    result: np.ndarray = columns - (sums / np.bincount(group)[:, None])[group]
    return result


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
