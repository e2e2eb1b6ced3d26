"""Efficiency: over one base that all series of a workload share, and over each series' own.

A series compared with itself hides the cost of its exchange at the base, and the slowest exchange can
look best. So the base is common, and its absolute rate is stated (Hoefler and Belli 2015, rule 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from scalestudy.analysis.stats import Interval, interval
from scalestudy.analysis.workload import series_of, workload_of
from scalestudy.spec.columns import provenance
from scalestudy.spec.run import is_compute_emulated
from scalestudy.spec.study import Study

RATE = "throughput_samples_per_s"
COLUMNS = tuple(
    f"{own}{name}"
    for own in ("", "own_")
    for name in ("baseline_ranks", "baseline_apart", "efficiency", "efficiency_low", "efficiency_high")
)


@dataclass(frozen=True)
class Base:
    """The base of one workload's runs."""

    kind: Literal["single", "pooled"]
    """`single`: one rank without exchange. `pooled`: no such run exists, so the mean over all series at the fewest ranks."""
    ranks: int
    runs: tuple[str, ...]
    """Ids of the runs that are pooled."""
    strategies: tuple[str, ...]
    rate: Interval
    """Samples/s."""


def with_scaling(rows: pd.DataFrame, study: Study) -> pd.DataFrame:
    """`rows` with efficiency over the common base and over the series' own, both bases' rank counts, and whether they were
    measured in another period or by another instrument.

    Efficiency is X(N)·N0/(N·X(N0)), with X the throughput in the measurement window, for weak and
    for strong scaling: with a fixed global batch, X(N)/X(N0) is T(N0)/T(N) of an epoch. Evaluations and checkpoints are
    in neither. Each run is compared with the base runs of its own round, pooled, or with all of them where its round
    has none. Rows that are not valid get no value, nor do ranks that share cores.

    A series' own base are its runs at its fewest ranks. Where it has none at one rank because its strategy exchanges
    nothing there, those are the runs without exchange, so that series with and without such runs have one base.
    """
    usable = _usable(rows)
    of_workload = dict(iter(usable.groupby(usable["run"].map(workload_of(study)), sort=False)))
    common, own = [pd.DataFrame()], [pd.DataFrame()]
    alone: dict[str, pd.DataFrame] = {}
    for name, base in bases(rows, study).items():
        members = of_workload[name]
        base_runs = members[members["run"].isin(base.runs)]
        common.append(_compared(members, base_runs))
        if base.kind == "single":
            alone |= dict.fromkeys(members["run"], base_runs)
    series = pd.Series(series_of(study))
    planned = pd.Series({run.id: run.columns["ranks"] for run in study.runs}).groupby(series).nunique()
    idle = {run.id for run in study.runs if run.spec.strategy.idle_alone}
    for name, members in usable.groupby(usable["run"].map(series), sort=False):
        first, fewest = members["run"].iloc[0], members["ranks"].min()
        if first in idle and first in alone and fewest > 1:
            own.append(_compared(members, alone[first]))
        elif planned[name] > 1:
            own.append(_compared(members, members[members["ranks"] == fewest]))
    values = pd.concat([pd.concat(common), pd.concat(own).add_prefix("own_")], axis=1)
    values = values.reindex(index=rows.index, columns=COLUMNS).astype(float)
    return pd.concat([rows.drop(columns=list(COLUMNS), errors="ignore"), values], axis=1)


def bases(rows: pd.DataFrame, study: Study) -> dict[str, Base]:
    """The common base of each workload with runs at several rank counts and a valid base run.

    Pooled are the valid runs of one rank under strategies that exchange nothing on one rank (`single`, and algorithms
    that are not overlapped: `idle_alone` in strategies/catalogue.py): they execute the same code on the same data, so
    that they differ by noise only.
    """
    workload = workload_of(study)
    idle = {run.id for run in study.runs if run.columns["ranks"] == 1 and run.spec.strategy.idle_alone}
    workload_bases = {}
    usable = _usable(rows)
    exchanges_nothing = usable["run"].isin(idle)
    planned = pd.Series({run.id: run.columns["ranks"] for run in study.runs}).groupby(pd.Series(workload)).nunique()
    for name, members in usable.groupby(usable["run"].map(workload), sort=False):
        if planned[name] < 2:
            continue
        alone = members[exchanges_nothing[members.index]]
        fewest = members[members["ranks"] == members["ranks"].min()]
        pooled = alone if len(alone) else fewest
        rate = interval(pooled[RATE].tolist(), log=True)
        assert rate is not None
        if not len(alone):
            rate = replace(rate, low=None, high=None)  # their spread is that between unlike series
        workload_bases[str(name)] = Base(
            "single" if len(alone) else "pooled",
            int(pooled["ranks"].iloc[0]),
            tuple(pooled["run"]),
            tuple(dict.fromkeys(pooled["strategy"])),
            rate,
        )
    return workload_bases


def _usable(rows: pd.DataFrame) -> pd.DataFrame:
    has_rate = (rows["status"] == "valid") & (rows[RATE] > 0)
    return rows[has_rate & (rows.apply(is_compute_emulated, axis=1) | ~rows["oversubscribed"])]


def _compared(members: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
    """Efficiencies of `members`: the rate over that of the base runs in the same round.

    Where a run's round has no base run, the mean of all is the base, and its uncertainty comes along as the
    interval of the run's value: it is the same for all repeats.
    """

    def mean_of(runs: pd.DataFrame) -> tuple[Interval | None, set[tuple[str, ...]]]:
        return interval(runs[RATE].tolist(), log=True), {*runs.apply(provenance, axis=1)}

    base_ranks, of_all = int(base["ranks"].iloc[0]), mean_of(base)
    by_round = {number: mean_of(runs) for number, runs in base.groupby("round")}
    efficiencies = {}
    for (index, row), place in zip(members.iterrows(), members.apply(provenance, axis=1), strict=True):
        used, places = by_round.get(row["round"], of_all)
        assert used is not None
        ends = {"efficiency": used.mean}
        if row["round"] not in by_round and used.low is not None and used.high is not None:
            ends |= {"efficiency_low": used.high, "efficiency_high": used.low}
        scale = base_ranks / int(row["ranks"])
        efficiencies[index] = {column: float(row[RATE]) / of_base * scale for column, of_base in ends.items()}
        efficiencies[index] |= {"baseline_ranks": base_ranks, "baseline_apart": {place} != places}
    return pd.DataFrame.from_dict(efficiencies, orient="index")
