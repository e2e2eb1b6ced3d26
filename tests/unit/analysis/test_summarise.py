"""From fake results to runs.parquet and summary.csv."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from scalestudy.analysis.identity import varied_columns
from scalestudy.analysis.summarise import read_rows, repair_summary, study_rows, summarise
from scalestudy.errors import UserError
from scalestudy.files import write_json
from scalestudy.spec.layout import run_folder
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


def test_a_run_without_a_result_is_a_row_of_its_own(study: Study) -> None:
    rows = study_rows(study, MACHINE)

    assert list(rows["run"]) == [run.id for run in study.runs]
    assert set(rows["status"]) == {"missing"}
    assert set(rows["reason"]) == {"no result yet"}


def test_a_run_that_stopped_says_why(study: Study) -> None:
    folder = run_folder(MACHINE, study.runs[0].id)
    write_json(folder / "state.json", {"state": "failed", "cause": "rank 1 was killed"})

    assert study_rows(study, MACHINE)["reason"][0] == "failed: rank 1 was killed"


def test_only_valid_runs_enter_a_mean(study: Study) -> None:
    write_results(study, one_of_each)

    row = next(row for row in summary_of(study) if row["strategy"] == "allreduce" and row["ranks"] == "1")

    assert [row[f"n_{status}"] for status in ("valid", "invalid", "skipped", "missing")] == ["0", "1", "1", "1"]
    assert row["training_time_s"] == ""


def test_the_summary_has_labels_means_and_intervals(study: Study) -> None:
    write_results(study)

    row = next(row for row in summary_of(study) if row["strategy"] == "allreduce" and row["ranks"] == "2")

    # 160, 161 and 162: mean 161, half width 4.302653 / sqrt(3).
    assert row["strategy (label)"] == "ring & all_reduce"
    assert float(row["throughput_samples_per_s"]) == pytest.approx(161)
    assert float(row["throughput_samples_per_s_low"]) == pytest.approx(158.515862, abs=1e-6)
    assert row["n_valid"] == "3"


def test_a_mean_with_an_extrapolated_time_is_extrapolated(study: Study) -> None:
    write_results(study, lambda run: {"kinds": {"training_time_s": "extrapolated"}} if run.spec.repeat == 1 else {})

    assert {row["kind"] for row in summary_of(study)} == {"extrapolated"}


def test_drift_over_five_percent_marks_all_rows(study: Study) -> None:
    write_results(study, lambda run: {"throughput_samples_per_s": [100.0, 103.0, 106.0][run.spec.repeat]})

    rows = study_rows(study, MACHINE)

    assert rows["drifted"].all()
    # (106 - 100) / 103
    assert rows["drift"][0] == pytest.approx(0.058252, abs=1e-6)


def test_drift_below_five_percent_marks_none(study: Study) -> None:
    write_results(study)

    assert not study_rows(study, MACHINE)["drifted"].any()


def test_the_device_is_no_part_of_the_instrument_where_compute_is_emulated(study: Study) -> None:
    def change(run: Run) -> dict[str, Any]:
        emulated = run.spec.ranks == 2
        device = f"device {run.spec.repeat}" if emulated else "cpu"
        return {"emulated": emulated, "instrument": {**INSTRUMENT, "device_name": device}}

    write_results(study, change)

    rows = study_rows(study, MACHINE)

    assert rows.loc[rows["ranks"] == 2, "instrument"].nunique() == 1


def test_the_same_results_give_the_same_bytes(study: Study) -> None:
    write_results(study, one_of_each)

    first = [file.read_bytes() for file in summarise(study, MACHINE)]
    second = [file.read_bytes() for file in summarise(study, MACHINE)]

    assert first == second


def test_rows_come_back_as_they_were(study: Study, tmp_path: Path) -> None:
    mixed = read_study(
        tmp_path, SCALING.replace("  ranks: [1, 2]", "  ranks: [1, 2]\n  data.scale: [0.5, 64 KiB]"), "mixed"
    )
    write_results(mixed)
    summarise(mixed, MACHINE)

    rows = read_rows(mixed, MACHINE)

    assert list(rows["data.scale"][:2]) == [0.5, "66 KB"]
    assert rows["ranks"][0] == 1
    assert rows["nodes"][0] is None


def test_rows_of_another_version_of_the_study_are_refused(study: Study, tmp_path: Path) -> None:
    summarise(study, MACHINE)
    changed = read_study(tmp_path, SCALING.replace("epochs: 15", "epochs: 16"))

    with pytest.raises(UserError, match="other runs"):
        read_rows(changed, MACHINE)


def test_columns_that_follow_from_others_do_not_tell_configurations_apart(study: Study, tmp_path: Path) -> None:
    text = SCALING.replace("  ranks: [1, 2]\n", "").replace(
        "repeats: 3", "zip: {ranks: [1, 2], threads_per_rank: [2, 1]}"
    )
    zipped = read_study(tmp_path, text, "zipped")

    assert varied_columns(zipped) == ["strategy", "ranks"]


def test_damaged_rows_are_refused_with_a_sentence_and_made_again_where_something_is_drawn(study: Study) -> None:
    write_results(study)
    file, _ = summarise(study, MACHINE)
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    with pytest.raises(UserError, match=r"runs.parquet: cannot be read: .*\n    delete it, then make it: snakemake"):
        read_rows(study, MACHINE)
    repair_summary(study, MACHINE)
    assert file.read_bytes() == whole
