"""Efficiency and speed-up against the smallest rank count of the same series."""

from __future__ import annotations

import math

import pandas as pd

from scalestudy.analysis.stats import interval
from scalestudy.files import canonical_json
from scalestudy.spec.columns import columns_of
from scalestudy.spec.study import Study

GEOMETRY = {"ranks", "nodes", "ranks_per_node", "seed", "repeat"}
NEVER_IN_STEP = ("model", "data.source", "device", "dtype")


def with_scaling(rows: pd.DataFrame, study: Study) -> pd.DataFrame:
    """`rows` with the columns `efficiency`, `speedup` and `baseline_ranks` (N0, the rank count that is compared with).

    Weak: X(N)·N0/(N·X(N0)); strong: T(N0)·N0/(N·T(N)); speed-up X(N)/X(N0); X throughput, T training time. Each
    repeat is compared with the same repeat of N0, or with N0's mean where that repeat is not there. Rows that are not
    valid get none of them, nor do ranks that share cores, nor a series planned with a single rank count.
    """
    rows = rows.copy()
    for column in ("efficiency", "speedup", "baseline_ranks"):
        rows[column] = math.nan
    usable = rows[(rows["status"] == "valid") & (rows["emulated"] | ~rows["oversubscribed"])]
    series = pd.Series(series_of(study))
    for _, members in usable.groupby(usable["run"].map(series), sort=False):
        planned = {columns["ranks"] for columns in _columns(study, str(series[members["run"].iloc[0]]), series)}
        if len(planned) < 2:
            continue
        fewest = int(members["ranks"].min())
        baseline = members[members["ranks"] == fewest]
        for index, row in members.iterrows():
            scale = int(row["ranks"]) / fewest
            speedup = float(row["throughput_samples_per_s"]) / _of(baseline, "throughput_samples_per_s", row["repeat"])
            time = _of(baseline, "training_time_s", row["repeat"]) / float(row["training_time_s"])
            rows.loc[index, "speedup"] = speedup
            rows.loc[index, "efficiency"] = (speedup if row["scaling"] == "weak" else time) / scale
            rows.loc[index, "baseline_ranks"] = fewest
    return rows


def series_of(study: Study) -> dict[str, str]:
    """For each run, the series that it belongs to: all that is varied agrees but the ranks and what moves with them."""
    columns = {run.id: columns_of(run.spec) for run in study.runs}
    drop = GEOMETRY | _in_step(study, list(columns.values()))
    return {
        run: canonical_json(
            {key: value for key, value in row.items() if key not in drop | _follows(str(row["scaling"]))}
        )
        for run, row in columns.items()
    }


def _follows(scaling: str) -> set[str]:
    return {"batch.global"} if scaling == "weak" else {"batch.per_rank"}


def _in_step(study: Study, rows: list[dict[str, object]]) -> set[str]:
    """Varied keys that have exactly one value for each rank count: varied by `zip` together with the ranks."""
    steps = set()
    for key in study.varied:
        # `strategy` stands for `strategy.name` and its options, so what is below a key goes with it.
        parts = {column for row in rows for column in row if column == key or column.startswith(f"{key}.")}
        if key.startswith(NEVER_IN_STEP) or not parts:
            continue
        pairs = {canonical_json([row["ranks"], {part: row.get(part) for part in sorted(parts)}]) for row in rows}
        if len(pairs) == len({row["ranks"] for row in rows}):
            steps |= parts
    return steps


def _columns(study: Study, series: str, of_run: pd.Series) -> list[dict[str, object]]:
    return [columns_of(run.spec) for run in study.runs if of_run[run.id] == series]


def _of(baseline: pd.DataFrame, column: str, repeat: object) -> float:
    """The baseline's value in that repeat, else its mean over repeats."""
    same = interval(baseline.loc[baseline["repeat"] == repeat, column].tolist()) or interval(baseline[column].tolist())
    return same.mean if same is not None else math.nan
