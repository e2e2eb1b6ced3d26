"""From the results of a study's runs to one row per run (runs.parquet) and one per configuration (summary.csv)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import is_object_dtype

from scalestudy.analysis.identity import varied_columns
from scalestudy.analysis.periods import periods_of
from scalestudy.analysis.scaling import with_scaling
from scalestudy.analysis.stats import CENSORED, interval_of
from scalestudy.errors import UserError
from scalestudy.files import canonical_json, now_at_most, sha256_text, write_text, write_with
from scalestudy.results.stored import contents_digest, read_result, state_of
from scalestudy.spec.columns import DERIVED, METRICS, PREDICTED, columns_of_runs
from scalestudy.spec.layout import result_file, run_folder, study_folder
from scalestudy.spec.study import Run, Study, label_of

STATUSES = ("valid", "invalid", "skipped", "missing")
ENDS = ("low", "high")
EXTRAPOLATED = ("training_time_s", "time_to_train_s", "epoch_time_s")
"""Metrics that a run cut short does not measure in full; they have a kind, and an interval of their own."""
MADE_FROM = b"scalestudy.made_from"
"""Key of the digest of the results among the notes of runs.parquet."""
VOLATILE = ("memory_gib", "system")
"""What two measurements may differ in and still be of one instrument."""


def summarise(study: Study, machine: str) -> tuple[Path, Path]:
    """Write runs.parquet and summary.csv of a study; returns their paths."""
    made_from = made_now_from(study, machine)  # first: what changes from now on counts as changed
    now_at_most(*(result_file(machine, run.id) for run in study.runs))
    rows = study_rows(study, machine)
    folder = study_folder(machine, study.scale, study.name)
    table = pa.Table.from_pandas(storable(rows))
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), MADE_FROM: made_from.encode()})
    write_with(folder / "runs.parquet", lambda file: pq.write_table(table, file))
    write_text(
        folder / "summary.csv", summary(study, rows).to_csv(index=False, float_format="%.10g", lineterminator="\n")
    )
    return folder / "runs.parquet", folder / "summary.csv"


def study_rows(study: Study, machine: str) -> pd.DataFrame:
    """One row per run, in the order of the study: state, keys of the spec, measured and derived columns.

    A run without a result has status `missing`. A metric that is not simply measured has its kind in `<metric>_kind`,
    and the interval that it came with in `<metric>_low` and `<metric>_high`. `round` counts the rounds of the study,
    `drift` says by how much all configurations were faster or slower in the run's round, `drifted` whether that is
    certain, and `period` numbers the campaigns.
    """
    from scalestudy.analysis.cost import with_cost

    rows = _with_spec(pd.DataFrame([_row(run, machine, study.target_accuracy) for run in study.runs]), study)
    numbers = {*METRICS, *DERIVED}
    for column in rows.columns:
        if column in numbers or column.removesuffix("_low").removesuffix("_high") in numbers:
            rows[column] = pd.to_numeric(rows[column])
        elif column.startswith("instrument.") or column.removesuffix("_kind") in numbers:
            rows[column] = rows[column].fillna("")
    rows["training_samples"] = (rows["epoch_time_s"] * rows["throughput_samples_per_s"]).round()
    rows["round"] = [run.repeat for run in study.runs]
    rows["period"] = periods_of(rows.to_dict("records"))  # type: ignore[arg-type]
    return with_cost(with_scaling(_with_drift(rows), study), study.prices)


def _with_drift(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with `drift` and its interval, and whether the round `drifted`."""
    from scalestudy.analysis.drift import round_effects

    rate = rows["throughput_samples_per_s"]
    usable = rows[(rows["status"] == "valid") & (rate > 0)]
    values = zip(usable["configuration"], usable["round"], usable["throughput_samples_per_s"], strict=True)
    effects = {effect.round: effect for effect in round_effects(list(values))}
    of_row = [effects.get(number) for number in rows["round"]]
    rows["drift"] = [math.nan if effect is None else effect.effect for effect in of_row]
    rows["drift_low"] = [math.nan if effect is None else effect.low for effect in of_row]
    rows["drift_high"] = [math.nan if effect is None else effect.high for effect in of_row]
    rows["drifted"] = [effect is not None and effect.drifted for effect in of_row]
    return rows


def made_now_from(study: Study, machine: str) -> str:
    """The digest of the results that a summary written now is made from."""
    return contents_digest(machine, [run.id for run in study.runs])


def is_current(study: Study, machine: str, file: Path | None = None) -> bool:
    """Whether the summary, and a file that is drawn from it, were made from the results that the study has now."""
    summary = study_folder(machine, study.scale, study.name) / "runs.parquet"
    try:
        made_from = (pq.read_schema(summary).metadata or {}).get(MADE_FROM, b"").decode()
        is_newer = file is None or file.stat().st_mtime >= summary.stat().st_mtime
    except (OSError, pa.ArrowException):
        return False
    return is_newer and made_from == made_now_from(study, machine)


def read_rows(study: Study, machine: str) -> pd.DataFrame:
    """The rows that `summarise` wrote, with the spec's values as the study has them. Raises UserError where they are not of this study."""
    file = study_folder(machine, study.scale, study.name) / "runs.parquet"
    remedy = f"make it: snakemake {file} --cores 1"
    if not file.exists():
        raise UserError(f"study `{study.name}` is not summarised yet", str(file), remedy)
    try:
        rows = pq.read_table(file).to_pandas()
        runs = list(rows["run"])
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise UserError(f"cannot be read: {error}", str(file), f"delete it, then {remedy}") from None
    if runs != [run.id for run in study.runs]:
        raise UserError(f"holds other runs than study `{study.name}` has now", str(file), remedy)
    return _with_spec(rows, study)


def summary(study: Study, rows: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration: varied keys, number of runs, and mean and 95 % interval of each metric over valid runs."""
    keys = varied_columns(study)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_dict("records"):
        groups.setdefault(row["configuration"], []).append({str(key): value for key, value in row.items()})
    return pd.DataFrame([_summary_row(study, keys, group) for group in groups.values()])


def _with_spec(rows: pd.DataFrame, study: Study) -> pd.DataFrame:
    """`rows` with the keys of each run's spec as columns, values as they are: None stays None, 1 stays an integer."""
    specs = columns_of_runs(study.runs)
    keys = dict.fromkeys(key for spec in specs for key in spec)
    columns = {key: pd.Series([spec.get(key) for spec in specs], dtype=object) for key in keys}
    return pd.concat([rows.drop(columns=list(keys), errors="ignore"), pd.DataFrame(columns)], axis=1)


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
    row["periods"] = len({run["period"] for run in runs if run["period"] > 0})
    row["baseline_ranks"] = _least(run["baseline_ranks"] for run in runs)
    row["own_baseline_ranks"] = _least(run["own_baseline_ranks"] for run in runs)
    for column in (*METRICS, *DERIVED):
        found = interval_of(runs, column)
        row[column] = found.mean if found else None
        row[f"{column}_low"] = found.low if found else None
        row[f"{column}_high"] = found.high if found else None
        row[f"{column}_kind"] = kind_of_all([kind_of(run, column) for run in runs]) if found else None
        if ends := [run[f"{column}_low"] for run in runs if run.get(f"{column}_kind") == CENSORED]:
            row[f"{column}_low"], row[f"{column}_kind"] = min(ends), CENSORED
    return row


def _least(values: Iterable[float]) -> float:
    """The least of the numbers that are known; NaN where none is."""
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def kind_of(row: Mapping[str, Any], column: str) -> str:
    """The kind of one run's number: as its result says, forecasts are predicted, all else is measured."""
    if column in PREDICTED:
        return "predicted"
    return str(row.get(f"{column}_kind") or "measured")


def kind_of_all(kinds: list[str]) -> str:
    """The kind of a mean: the least certain one of its numbers."""
    return next((kind for kind in ("predicted", "extrapolated", "reported") if kind in kinds), "measured")


def _row(run: Run, machine: str, target: float | None) -> dict[str, Any]:
    result = read_result(machine, run) or _missing(machine, run)
    metrics: Mapping[str, Any] = result.get("metrics") or {}
    instrument: Mapping[str, Any] = result.get("instrument") or {}
    return {
        "run": run.id,
        "configuration": run.configuration,
        "status": result["status"],
        "reason": result.get("reason") or "",
        "unchecked": len(result.get("unchecked") or ()),
        "kind": (result.get("kinds") or {}).get("training_time_s", "measured"),
        "emulated": bool(run.emulated),
        "oversubscribed": bool(result.get("oversubscribed", False)),
        "exchange_shares_cores": exchange_shares_cores(run, result),
        "disturbed": bool(result.get("disturbed", False)),
        "window_ended_by": str(result.get("window_ended_by") or ""),
        "nodes_used": (result.get("resolved") or {}).get("nodes"),
        "instrument": instrument_digest(instrument, run.spec.accelerator is not None),
        **{f"instrument.{key}": str(value) for key, value in sorted(instrument.items())},
        "started": str(result.get("started") or ""),
        **{column: metrics.get(column) for column in METRICS},
        **_reached(result.get("evaluations") or [], target),
        **_kinds_and_intervals(result),
    }


def time_to_accuracy(evaluations: Sequence[Mapping[str, Any]], target: float | None) -> float:
    """Training time in seconds until the target is reached, between evaluations by linear interpolation of the score.

    The first evaluation that reaches it ends the search; NaN where none does.
    """
    before: tuple[float, float] | None = None
    for each in evaluations:
        score, time_s = (
            each.get("accuracy") if each.get("accuracy") is not None else each.get("auroc"),
            float(each["time_s"]),
        )
        if target is not None and score is not None and score >= target:
            if before is None:
                return time_s
            earlier_s, below = before
            return earlier_s + (time_s - earlier_s) * (target - below) / (float(score) - below)
        before = before if score is None else (time_s, float(score))
    return math.nan


def _reached(evaluations: Sequence[Mapping[str, Any]], target: float | None) -> dict[str, Any]:
    """The time to the accuracy. Of a run that ends below the target it is only known to be longer than the run was."""
    found = time_to_accuracy(evaluations, target)
    below = target is not None and bool(evaluations) and math.isnan(found)
    return {
        "time_to_accuracy_s": found,
        "time_to_accuracy_s_low": float(evaluations[-1]["time_s"]) if below else None,
        "time_to_accuracy_s_kind": CENSORED if below else "",
    }


def exchange_shares_cores(run: Run, result: Mapping[str, Any]) -> bool:
    """Whether more processes exchange on a host than it has cores, where compute is emulated.

    An emulated accelerator takes no core, so such ranks are not oversubscribed; but their exchange is real, with one
    thread in each rank and each parameter server.
    """
    if run.spec.accelerator is None or run.spec.ranks + run.spec.strategy.servers_beside < 2:
        return False
    hosts = len((result.get("launch") or {}).get("hosts") or [""])
    cores = (result.get("instrument") or {}).get("cores")
    working = -(-(run.spec.ranks + run.spec.strategy.servers_beside) // hosts)
    return isinstance(cores, int) and working > cores


def _kinds_and_intervals(result: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and own interval of values that are not simply measured."""
    kinds: dict[str, str] = dict(result.get("kinds") or {})
    if "training_time_s" in kinds:
        # An epoch that was not measured whole is its samples over the rate of the window.
        kinds.setdefault("epoch_time_s", kinds["training_time_s"])
    intervals = result.get("intervals") or {}
    found: dict[str, Any] = {}
    for column in dict.fromkeys([*EXTRAPOLATED, *kinds, *intervals]):
        if column in METRICS:
            low, high = intervals.get(column) or (None, None)
            found |= {f"{column}_low": low, f"{column}_high": high, f"{column}_kind": kinds.get(column, "")}
    return found


def _missing(machine: str, run: Run) -> dict[str, Any]:
    """Row of a run without a result."""
    state = state_of(run_folder(machine, run.id))
    what = state.get("state", "stopped")
    cause = (
        f"{'no result yet' if what == 'running' else what}: {state['cause']}" if state.get("cause") else "no result yet"
    )
    return {"status": "missing", "reason": cause}


def instrument_digest(instrument: Mapping[str, Any], compute_emulated: bool) -> str:
    """Twelve hex digits over code, versions and hardware; where compute is emulated the device's name is left out."""
    if not instrument:
        return ""
    leave_out = (*VOLATILE, "device_name") if compute_emulated else VOLATILE
    return sha256_text(canonical_json({key: value for key, value in instrument.items() if key not in leave_out}))[:12]


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
