"""Results are those of their run and machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.analysis.summarise import study_rows
from scalestudy.results.stored import read_result, write_result
from scalestudy.spec.layout import machine_of, result_file
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE, result_of


@pytest.mark.parametrize("content", ["[]", "{}", "7", "{", '{"status": "valid"}'])
def test_a_file_that_is_not_a_result_is_invalid(study: Study, content: str) -> None:
    file = result_file(MACHINE, study.runs[0].id)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    found = read_result(MACHINE, study.runs[0])
    assert found is not None and found["status"] == "invalid"


def test_the_machine_of_a_result_is_that_of_its_path() -> None:
    assert machine_of(Path("/home/u/results/abci+night_2/runs/r-1/result.json")) == "abci+night_2"
    for file in ("out/result.json", "runs/r-1/result.json", "results/local/tries/r-1/result.json"):
        assert machine_of(Path(file)) is None


def test_the_results_of_another_run_or_machine_enter_no_table(study: Study) -> None:
    first, *others = study.runs
    write_result(result_file(MACHINE, first.id), result_of(others[0]))
    for run in others:
        machine = "tsubame3" if run.spec.ranks == 2 else MACHINE
        write_result(result_file(MACHINE, run.id), result_of(run, machine=machine))
    rows = study_rows(study, MACHINE)
    foreign = (rows["ranks"] == 2) | (rows["run"] == first.id)
    assert set(rows.loc[foreign, "status"]) == {"invalid"}
    assert rows.loc[foreign, "throughput_samples_per_s"].isna().all()
    assert set(rows.loc[~foreign, "status"]) == {"valid"}
    assert "it is the result of `" in rows["reason"][0]
    assert rows["reason"][0].endswith(f"(measure it again: scalestudy forget {first.id} --machine {MACHINE})")
