"""From fake results to runs.parquet and summary.csv."""

from __future__ import annotations

import csv
import math
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalestudy.analysis.recorded import read_records
from scalestudy.analysis.rows import read_rows
from scalestudy.analysis.summarise import periods_of, study_rows, summarise, time_to_accuracy, time_to_plateau
from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.spec.columns import MEASURED, ROW_COLUMNS, columns_of
from scalestudy.spec.layout import result_file, run_folder
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import INSTRUMENT, MACHINE, SCALING, read_study, write_results


def one_of_each(run: Run) -> dict[str, Any] | None:
    """Of all-reduce on one rank: repeat 0 invalid, 1 skipped, 2 without a result."""
    if run.spec.strategy.name != "allreduce" or run.spec.ranks != 1:
        return {}
    changes: list[dict[str, Any] | None] = [
        {"status": "invalid", "reason": "the loss is not finite", "metrics": {"training_time_s": 1e9}},
        {"status": "skipped", "reason": "no such GPU", "metrics": {}},
        None,
    ]
    return changes[run.spec.repeat]


def summary_of(study: Study) -> list[dict[str, str]]:
    _, file = summarise(study, MACHINE)
    with open(file, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_run_without_a_result_is_a_row_that_says_why(study: Study) -> None:
    folder = run_folder(MACHINE, study.runs[0].id)
    write_json(folder / "state.json", {"state": "failed", "cause": "rank 1 was killed"})

    rows = study_rows(study, MACHINE)

    assert list(rows["run"]) == [run.id for run in study.runs]
    assert set(rows["status"]) == {"missing"}
    assert list(rows["reason"][:2]) == ["failed: rank 1 was killed", "no result yet"]


def test_a_result_from_a_clock_ahead_is_older_than_the_tables_that_are_made_of_it(study: Study) -> None:
    write_results(study)
    result = result_file(MACHINE, study.runs[0].id)
    os.utime(result, (time.time() + 3600,) * 2)
    assert all(file.stat().st_mtime >= result.stat().st_mtime for file in summarise(study, MACHINE))


def test_only_valid_runs_enter_a_mean_which_has_a_label_and_an_interval(study: Study) -> None:
    write_results(study, one_of_each)

    row, valid = (row for row in summary_of(study) if row["strategy"] == "allreduce")

    assert [row[f"n_{status}"] for status in ("valid", "invalid", "skipped", "missing")] == ["0", "1", "1", "1"]
    assert (row["training_time_s"], row["strategy (label)"], valid["n_valid"]) == ("", "ring & all_reduce", "3")
    # 160, 161 and 162: geometric mean 160.99793, t-interval of the logarithms.
    assert float(valid["throughput_samples_per_s"]) == pytest.approx(160.997930, abs=1e-6)
    assert float(valid["throughput_samples_per_s_low"]) == pytest.approx(158.532786, abs=1e-4)


@pytest.mark.parametrize(
    ("ways", "valid"),
    [
        (("plain", "kernel, AVX2", ""), ["invalid", "valid", "valid"]),  # the last repeat has decoded nothing
        (("plain: pillow and torch", "kernel, AVX2", "kernel, AVX2"), ["valid"] * 3),  # PNGs have one decoder
    ],
)
def test_runs_that_decoded_images_otherwise_than_the_last_one_enter_no_mean(
    study: Study, ways: tuple[str, ...], valid: list[str]
) -> None:
    def by(run: Run) -> dict[str, Any]:
        begun = f"2026-11-2{run.spec.repeat}T00:00:00+00:00"
        return {"instrument": {**INSTRUMENT, "decoder": ways[run.spec.repeat]}, "started": begun}

    write_results(study, by)
    rows = study_rows(study, MACHINE)
    assert [rows["status"][rows["repeat"] == repeat].unique().tolist() for repeat in range(3)] == [
        [each] for each in valid
    ]
    for reason in rows["reason"][rows["status"] == "invalid"]:
        assert reason.startswith(
            "it decoded images by plain, and the study's last run by kernel, AVX2: scalestudy forget"
        )


def test_each_time_has_its_own_kind_and_interval(study: Study) -> None:
    own = {
        "kinds": {"training_time_s": "extrapolated", "time_to_train_s": "extrapolated"},
        "intervals": {
            "training_time_s": [90.0, 170.0],
            "time_to_train_s": [95.0, 175.0],
            "exposed_exchange_s": [0.1, 0.3],
        },
        "metrics": {"time_to_train_s": 120.0, "exposed_exchange_s": 0.2},
    }
    write_results(study, lambda run: own)

    rows, row = study_rows(study, MACHINE), summary_of(study)[0]

    assert (rows["time_to_train_s_low"][0], rows["time_to_train_s_high"][0]) == (95.0, 175.0)
    kinds = [row[f"{name}_kind"] for name in ("training_time_s", "time_to_train_s", "epoch_time_s", "step_time_s")]
    assert kinds == ["extrapolated", "extrapolated", "extrapolated", ""]
    assert row["throughput_samples_per_s_kind"] == "measured"
    assert float(row["time_to_train_s_low"]) == pytest.approx(120.0 / (175 / 95) ** 0.5)
    assert float(row["exposed_exchange_s_low"]) == pytest.approx(0.2), "repeats tell what a run's own pairs do"


@pytest.mark.parametrize(
    ("key", "emulated", "instruments"),
    [
        ('device: "emulated:p100"', True, 1),  # the real device computes nothing
        ("network: {mib_per_s: 100}\n  ranks_per_node: 1", True, 3),
        ("dtype: float32", False, 3),
    ],
)
def test_emulated_parts_mark_a_run_and_an_emulated_device_has_no_instrument(
    key: str, emulated: bool, instruments: int, study: Study, tmp_path: Path
) -> None:
    text = SCALING.replace("model: small_cnn", f"model: resnet50\n  {key}")
    other = read_study(tmp_path, text, "emulated")
    write_results(other, lambda run: {"instrument": {**INSTRUMENT, "device_name": f"device {run.spec.repeat}"}})
    assert study_rows(other, MACHINE)["emulated"].eq(emulated).all()
    assert len({str(record.instrument()) for record in read_records(MACHINE).runs}) == instruments


def test_rows_come_back_as_they_were_with_no_column_that_a_key_of_ones_own_may_be_called(
    study: Study, tmp_path: Path
) -> None:
    mixed = read_study(
        tmp_path, SCALING.replace("  ranks: [1, 2]", "  ranks: [1, 2]\n  data.scale: [0.5, 64 KiB]"), "mixed"
    )
    write_results(mixed)
    summarise(mixed, MACHINE)

    rows = read_rows(mixed, MACHINE)

    assert list(rows["data.scale"][:2]) == [0.5, "66 KB"]
    assert rows["ranks"][0] == 1
    assert rows["nodes"][0] is None
    known = {*MEASURED, *ROW_COLUMNS, *(key for run in mixed.runs for key in columns_of(run.spec))}
    others = [name for name in rows if name not in known and not name.startswith("instrument.")]
    assert [name for name in others if not name.endswith(("_low", "_high", "_kind"))] == []


def test_rows_of_another_version_of_the_study_are_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not summarised yet"):
        read_rows(study, MACHINE)
    summarise(study, MACHINE)
    changed = read_study(tmp_path, SCALING.replace("epochs: 15", "epochs: 16"))

    with pytest.raises(UserError, match="other runs"):
        read_rows(changed, MACHINE)


def test_the_time_to_an_accuracy_lies_between_the_evaluations_around_it() -> None:
    evaluations = [{"time_s": time, "accuracy": score} for time, score in ((10, 0.5), (20, 0.7), (30, 0.6), (40, 0.8))]
    assert time_to_accuracy(evaluations, 0.4) == 10
    assert time_to_accuracy(evaluations, 0.6) == pytest.approx(15)
    assert time_to_accuracy(evaluations, 0.7) == pytest.approx(20)
    assert time_to_accuracy(evaluations, 0.75) == pytest.approx(37.5)
    assert math.isnan(time_to_accuracy(evaluations, 0.9))
    assert math.isnan(time_to_accuracy(evaluations, None))
    assert time_to_accuracy([{"time_s": 5, "accuracy": None, "auroc": 0.8}], 0.7) == 5


def test_a_curve_is_flat_from_the_evaluation_that_begins_its_last_stretch_near_the_end() -> None:
    def flat_from(*scores: float) -> float:
        return time_to_plateau([{"time_s": 10 * i, "accuracy": score} for i, score in enumerate(scores, start=1)])

    assert flat_from(0.5, 0.795, 0.7, 0.792, 0.8) == 40  # near the end for good, not for once
    assert flat_from(0.8, 0.795) == 10
    assert (
        flat_from(0.5, 0.792, 0.802) == flat_from(0.5, 0.79, 0.8) == 20
    )  # the limit itself, with and without rounding
    assert math.isnan(flat_from(0.5, 0.8)) and math.isnan(flat_from(0.8)) and math.isnan(flat_from())


def test_a_run_that_never_reaches_the_accuracy_leaves_no_mean_but_a_bound(study: Study, tmp_path: Path) -> None:
    study = read_study(tmp_path, SCALING.replace("repeats: 3", "repeats: 3\ntarget_accuracy: 0.7"), "reaching")

    def evaluated(run: Run) -> dict[str, Any]:
        reached = run.spec.ranks == 1 or run.spec.repeat > 0
        return {
            "evaluations": [
                {"step": 1, "time_s": 10, "accuracy": 0.5},
                {"step": 2, "time_s": 20, "accuracy": 0.8 if reached else 0.6},
            ]
        }

    write_results(study, evaluated)
    rows = {row["ranks"]: row for row in summary_of(study)}
    ends = ("", "_low", "_kind")

    assert [rows["1"][f"time_to_accuracy_s{end}"] for end in ends] == ["16.66666667", "16.66666667", "measured"]
    assert [rows["2"][f"time_to_accuracy_s{end}"] for end in ends] == ["", "20", "censored"]


def test_emulated_ranks_that_exchange_on_fewer_cores_than_there_are_of_them_are_marked(
    study: Study, tmp_path: Path
) -> None:
    text = SCALING.replace("model: small_cnn", 'model: resnet50\n  device: "emulated:p100"')
    emulated = read_study(tmp_path, text.replace("ranks: [1, 2]", "ranks: [1, 2, 4]"), "emulated")
    write_results(emulated, lambda run: {"launch": {"hosts": ["here"]}})

    rows = study_rows(emulated, MACHINE)

    # Two cores; a parameter server is one process more.
    marked = {(row["strategy"], row["ranks"]) for _, row in rows[rows["exchange_shares_cores"]].iterrows()}
    assert marked == {("allreduce", 4), ("parameter_server", 2), ("parameter_server", 4)}


def test_more_than_twelve_hours_after_a_run_has_ended_begins_another_period() -> None:
    hours = ("2026-12-03T08:00:00+00:00", "2026-11-20T08:00:00+00:00", "2026-11-20T19:59:00+00:00", "")
    assert periods_of(pd.DataFrame({"started": hours, "ended": hours})).tolist() == [2, 1, 1, 0]
    # A chain of jobs, which waited in the queue for a day between two of them.
    after_a_day = pd.DataFrame({"started": ["2026-11-20T08:00:00+00:00", "2026-11-21T09:00:00+00:00"]})
    ended = ["2026-11-21T08:00:00+00:00", "2026-11-21T09:10:00+00:00"]
    assert periods_of(after_a_day.assign(ended=ended)).tolist() == [1, 1]
