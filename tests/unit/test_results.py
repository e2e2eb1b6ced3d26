"""`scalestudy results`: what it lists and writes."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from scalestudy import cli
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import result_of

STUDY = """
question: Which?
base: {data: {source: synthetic, shape: [3, 8, 8]}}
vary:
  ranks: [1, 2]
  strategy: [allreduce, parameter_server]
scales: {mini: {}}
"""


@pytest.fixture
def study(project: Path) -> Study:
    """Four runs on `local`, the last invalid; the first also in a campaign."""
    (project / "config/studies/exchange.yaml").write_text(STUDY)
    (project / "config/studies/other.yaml").write_text("question: How?\nbase: {data: {source: digits}}\n")
    study = read_studies(["exchange"], "mini", Machine())[0]
    for run in study.runs[:3]:
        write_result(result_file("local", run.id), result_of(run))
    wrong = study.runs[3]
    write_result(result_file("local", wrong.id), result_of(wrong, status="invalid", reason="the loss is not finite"))
    write_result(result_file("local+b", study.runs[0].id), result_of(study.runs[0]))
    return study


def results(*arguments: str) -> int:
    return cli.run_command(["results", *arguments])


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--machine", "local"], 4),
        ([], 5),
        (["--machine", "local", "--machine", "local+b"], 5),
        (["--where", "ranks=1", "--where", "strategy=allreduce"], 2),
        (["--where", "ranks=[1, 2]", "--machine", "local"], 4),
        (["--study", "exchange", "--status", "valid", "--status", "invalid"], 5),
    ],
)
def test_filters_leave_what_is_asked_for(
    study: Study, capsys: pytest.CaptureFixture[str], arguments: list[str], count: int
) -> None:
    assert results(*arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{count} of ")


def test_a_csv_file_has_a_row_per_run(study: Study) -> None:
    assert results("--out", "runs.csv") == 0
    with open("runs.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 5
    assert {row["results"] for row in rows} == {"local", "local+b"}
    assert {(row["study"], row["scale"]) for row in rows} == {("exchange", "mini")}
    assert {row["data.shape"] for row in rows} == {"[3,8,8]"}
    assert [*rows[0]][:6] == ["results", "study", "scale", "run", "configuration", "status"]


def test_a_parquet_file_has_the_same_rows(study: Study) -> None:
    assert results("--out", "runs.parquet") == 0
    frame = pd.read_parquet("runs.parquet")
    assert sorted(frame["ranks"]) == [1, 1, 1, 2, 2]
    assert frame["throughput_samples_per_s"].notna().sum() == 5


def test_a_damaged_result_is_named_and_left_out(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    result_file("local", study.runs[0].id).write_text("{}")
    assert results("--machine", "local") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "3 of 3 runs"
    assert captured.err.startswith(f"notice: local: {study.runs[0].id}: not what was measured")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where", "rnks=2"], "there is no column `rnks`\n    did you mean `ranks`?"),
        (["--where", "ranks"], "`ranks` is not a setting"),
        (["--columns", "acuracy"], "there is no column `acuracy`\n    did you mean `accuracy`?"),
        (["--where", "ranks=77"], "none of 5 runs matches"),
        (["--out", "runs.xls"], "`.xls` is not a supported table format\n    end the name in .parquet, .csv"),
    ],
)
def test_bad_input_is_one_message(
    study: Study, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert results(*arguments) == 2
    assert message in capsys.readouterr().err


def test_columns_that_a_program_reported_are_named_in_the_list(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    results("--machine", "local")
    assert "reported" not in capsys.readouterr().out
    kinds = {"throughput_samples_per_s": "reported", "loss": "reported"}
    write_result(result_file("local", study.runs[0].id), result_of(study.runs[0], kinds=kinds))
    results("--machine", "local")
    assert "throughput_samples_per_s, loss" in capsys.readouterr().out
