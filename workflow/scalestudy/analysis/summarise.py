"""From the results of a study's runs to one row per run (runs.parquet) and one per configuration (summary.csv)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import is_object_dtype

from scalestudy.analysis.drift import with_drift
from scalestudy.analysis.rows import with_spec
from scalestudy.analysis.scaling import with_scaling
from scalestudy.analysis.stats import CENSORED, interval_of
from scalestudy.analysis.workload import varied_columns
from scalestudy.files import canonical_json, now_at_most, write_text, write_with
from scalestudy.results.stored import read_result, state_of
from scalestudy.spec.columns import MEASURED, METRICS, NOT_JPEG, STATUSES, kind_of, kind_of_all, provenance
from scalestudy.spec.labels import label_of
from scalestudy.spec.layout import result_file, run_folder, study_folder
from scalestudy.spec.run import emulated_parts
from scalestudy.spec.study import Run, Study

DECODER = "instrument.decoder"
MAX_GAP = timedelta(hours=12)
"""Between the end of one run and the start of the next, within one period."""
PLATEAU = 0.01
"""How far from its end a curve of accuracy is flat: one point is the least that would change a choice."""
EXTRAPOLATED = ("training_time_s", "time_to_train_s", "epoch_time_s")
"""Metrics that a run cut short does not measure in full; they have a kind, and an interval of their own."""


def summarise(study: Study, machine: str) -> tuple[Path, Path]:
    """Write runs.parquet and summary.csv of a study; returns their paths."""
    now_at_most(*(result_file(machine, run.id) for run in study.runs))
    rows = study_rows(study, machine)
    folder = study_folder(machine, study.scale, study.name)
    table = pa.Table.from_pandas(storable(rows))
    files = folder / "runs.parquet", folder / "summary.csv"
    write_with(files[0], lambda file: pq.write_table(table, file))
    write_text(files[1], summary(study, rows).to_csv(index=False, float_format="%.10g", lineterminator="\n"))
    return files


def study_rows(study: Study, machine: str) -> pd.DataFrame:
    """One row per run, in the order of the study: state, keys of the spec, measured and derived columns.

    A run without a result has status `missing`. A metric that is not simply measured has its kind in `<metric>_kind`,
    and the interval that it came with in `<metric>_low` and `<metric>_high`. `round` counts the rounds of the study,
    `drift` says by how much all configurations were faster or slower in the run's round, `drifted` whether that is
    certain, and `period` numbers the campaigns.
    """
    rows = with_spec(pd.DataFrame([_row(run, machine, study.target_accuracy) for run in study.runs]), study)
    for column in rows.columns:
        if column.removesuffix("_low").removesuffix("_high") in MEASURED:
            rows[column] = pd.to_numeric(rows[column])
        elif column.startswith("instrument.") or column.removesuffix("_kind") in MEASURED:
            rows[column] = rows[column].fillna("")
    refuse_other_decoders(rows, machine)
    rows["training_samples"] = (rows["epoch_time_s"] * rows["throughput_samples_per_s"]).round()
    rows["round"] = [run.spec.repeat for run in study.runs]
    rows["period"] = periods_of(rows)
    return with_scaling(with_drift(rows), study)


def refuse_other_decoders(rows: pd.DataFrame, machine: str) -> None:
    """Mark runs invalid that decoded images in another way than the study's last one: there is no mean of the two."""
    if DECODER not in rows:
        return
    # PNG has one decoder everywhere: beside JPEG it is no other way of doing the same.
    decoded = rows[(rows["status"] == "valid") & ~rows[DECODER].isin(["", NOT_JPEG])].sort_values("started")
    for index, run, way in zip(decoded.index, decoded["run"], decoded[DECODER], strict=True):
        if way != (last := decoded[DECODER].iloc[-1]):
            remedy = f"scalestudy forget {run} --machine {machine}"
            reason = f"it decoded images by {way}, and the study's last run by {last}: {remedy}"
            rows.loc[index, ["status", "reason"]] = "invalid", reason


def storable(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with one type per column: lists, and values of several types, as JSON text."""
    rows = rows.copy()
    for column in [column for column in rows.columns if is_object_dtype(rows[column])]:
        values = [value for value in rows[column] if value is not None]
        kinds = {
            "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
            for value in values
        }
        if len(kinds) > 1 or kinds & {"list", "dict", "tuple"}:
            rows[column] = [None if value is None else canonical_json(value) for value in rows[column]]
        elif kinds == {"number"}:
            rows[column] = pd.to_numeric(rows[column])
    return rows


# A run's row


def _row(run: Run, machine: str, target: float | None) -> dict[str, Any]:
    result = read_result(machine, run) or _missing(machine, run)
    metrics, instrument, kinds = (result.get(key) or {} for key in ("metrics", "instrument", "kinds"))
    return {
        "run": run.id,
        "configuration": run.configuration,
        "status": result["status"],
        "reason": result.get("reason") or "",
        "kind": kinds.get("training_time_s", "measured"),
        "emulated": bool(emulated_parts([run.columns])),
        "oversubscribed": bool(result.get("oversubscribed")),
        "disturbed": bool(result.get("disturbed")),
        "started": str(result.get("started") or ""),
        "ended": str(result.get("ended") or ""),
        **{column: metrics.get(column) for column in METRICS},
        **{f"instrument.{key}": str(value) for key, value in sorted(instrument.items())},
        "unchecked": len(result.get("unchecked") or ()),
        "exchange_shares_cores": exchange_shares_cores(run, result),
        **_reached(result.get("evaluations") or [], target),
        **_kinds_and_intervals(result),
    }


def _missing(machine: str, run: Run) -> dict[str, Any]:
    """Stands for the result of a run without one."""
    state = state_of(run_folder(machine, run.id))
    what = "no result yet" if state.get("state") == "running" else state.get("state", "stopped")
    return {"status": "missing", "reason": f"{what}: {state['cause']}" if state.get("cause") else "no result yet"}


def periods_of(rows: pd.DataFrame) -> pd.Series[Any]:
    """For each run the number of its period of measuring, from 1; 0 where it is not known when it was measured.

    `rows` have `started` and `ended` (ISO 8601, or empty). Runs that were measured in one go share a period, whichever
    study asked for them; a run that starts more than 12 hours after the last one ended begins another.
    """
    started = pd.to_datetime(rows["started"][rows["started"] != ""], utc=True, format="ISO8601").sort_values()
    ended = pd.to_datetime(rows["ended"].loc[started.index], utc=True, format="ISO8601")
    begins_another: pd.Series[bool] = started - ended.cummax().shift() > MAX_GAP
    return (begins_another.cumsum() + 1).reindex(rows.index, fill_value=0)


def time_to_accuracy(evaluations: Sequence[Mapping[str, Any]], target: float | None) -> float:
    """Training time in seconds until the target is reached, between evaluations by linear interpolation of the score.

    The first evaluation that reaches it ends the search; NaN where none does.
    """
    before: tuple[float, float] | None = None
    for time_s, score in _scores(evaluations):
        if target is not None and score >= target:
            if before is None:
                return time_s
            earlier_s, below = before
            return earlier_s + (time_s - earlier_s) * (target - below) / (score - below)
        before = time_s, score
    return math.nan


def time_to_plateau(evaluations: Sequence[Mapping[str, Any]]) -> float:
    """Training time in seconds of the evaluation from which on the score stays within PLATEAU of the last one.

    NaN where the last evaluation is the only one there.
    """
    scores = _scores(evaluations)
    begins = math.nan
    for time_s, score in reversed(scores[:-1]):
        if abs(score - scores[-1][1]) > PLATEAU + 1e-9:  # shares of few samples differ by the limit itself
            break
        begins = time_s
    return begins


def _scores(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Pair training time in seconds with accuracy, or with AUROC, for the evaluations that have one."""
    timed_scores = ((each["time_s"], each.get("accuracy"), each.get("auroc")) for each in evaluations)
    scores = ((time_s, auroc if accuracy is None else accuracy) for time_s, accuracy, auroc in timed_scores)
    return [(float(time_s), float(score)) for time_s, score in scores if score is not None]


def _reached(evaluations: Sequence[Mapping[str, Any]], target: float | None) -> dict[str, Any]:
    """Times to the accuracy and to the plateau. Of a run that ends below the accuracy, its last evaluation is a lower bound."""
    accuracy_time_s = time_to_accuracy(evaluations, target)
    below = target is not None and bool(evaluations) and math.isnan(accuracy_time_s)
    return {
        "time_to_accuracy_s": accuracy_time_s,
        "time_to_accuracy_s_low": float(evaluations[-1]["time_s"]) if below else None,
        "time_to_accuracy_s_kind": CENSORED if below else "",
        "time_to_plateau_s": time_to_plateau(evaluations),
    }


def exchange_shares_cores(run: Run, result: Mapping[str, Any]) -> bool:
    """Whether more processes exchange on a host than it has cores, where compute is emulated.

    An emulated accelerator takes no core, so such ranks are not oversubscribed; but their exchange is real, with one
    thread in each rank and each parameter server.
    """
    processes = run.spec.ranks + run.spec.strategy.servers_beside
    if run.spec.accelerator is None or processes < 2:
        return False
    hosts = len((result.get("launch") or {}).get("hosts") or [""])
    cores = (result.get("instrument") or {}).get("cores")
    return isinstance(cores, int) and -(-processes // hosts) > cores


def _kinds_and_intervals(result: Mapping[str, Any]) -> dict[str, Any]:
    """Kind of values that are not simply measured, and the interval of those that are extrapolated: it is the same in all
    repeats. What a run knows of its own spread, such as that of its exposed exchange, the spread of repeats has in it.
    """
    kinds: dict[str, str] = dict(result.get("kinds") or {})
    if "training_time_s" in kinds:
        # An epoch that was not measured whole is its samples over the rate of the window.
        kinds.setdefault("epoch_time_s", kinds["training_time_s"])
    intervals = result.get("intervals") or {}
    columns: dict[str, Any] = {}
    for column in dict.fromkeys([*EXTRAPOLATED, *kinds, *intervals]):
        if column in METRICS:
            low, high = (intervals.get(column) if column in kinds else None) or (None, None)
            columns |= {f"{column}_low": low, f"{column}_high": high, f"{column}_kind": kinds.get(column, "")}
    return columns


# A configuration's row


def summary(study: Study, rows: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration: varied keys, number of runs, and mean and 95 % interval of each metric over valid runs."""
    keys = varied_columns(study)
    groups = rows.groupby("configuration", sort=False)
    return pd.DataFrame([_summary_row(study, keys, group.to_dict("records")) for _, group in groups])  # type: ignore[arg-type]


def _summary_row(study: Study, keys: Sequence[str], group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of one configuration, from its runs' rows; `keys` tell configurations apart."""
    first = group[0]
    row: dict[str, Any] = {"configuration": first["configuration"]}
    for key in dict.fromkeys([*keys, *(key for key in study.varied if key in first)]):
        value = first.get(key)
        row[key] = canonical_json(value) if isinstance(value, (list, dict)) else value
        if key in study.labels:
            row[f"{key} (label)"] = label_of(study.labels, key, value)
    runs = [run for run in group if run["status"] == "valid"]
    row |= {f"n_{status}": sum(run["status"] == status for run in group) for status in STATUSES}
    row["kind"] = kind_of_all([run["kind"] for run in runs])
    row["emulated"] = any(run["emulated"] for run in group)
    row["oversubscribed"] = any(run["oversubscribed"] for run in runs)
    row["drifted"] = any(run["drifted"] for run in runs)
    row["n_disturbed"] = sum(bool(run["disturbed"]) for run in runs)
    row["measured_in"] = canonical_json(sorted({provenance(run) for run in runs}))
    for column in ("baseline_ranks", "own_baseline_ranks"):
        row[column] = min((run[column] for run in runs if not math.isnan(run[column])), default=math.nan)
    for column in MEASURED:
        row |= numbers_of(runs, column)
    return row


def numbers_of(runs: Sequence[Mapping[str, Any]], column: str) -> dict[str, Any]:
    """Mean, interval and kind of a column over valid runs. Where some are censored the mean is only known to be larger than
    the lower end."""
    estimate = interval_of(runs, column)
    numbers: dict[str, Any] = {
        column: estimate.mean if estimate else None,
        f"{column}_low": estimate.low if estimate else None,
        f"{column}_high": estimate.high if estimate else None,
        f"{column}_kind": kind_of_all([kind_of(run, column) for run in runs]) if estimate else None,
    }
    if ends := [run[f"{column}_low"] for run in runs if run.get(f"{column}_kind") == CENSORED]:
        numbers |= {f"{column}_low": min(ends), f"{column}_kind": CENSORED}
    return numbers
