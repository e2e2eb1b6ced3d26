"""Results are those of their run and machine; one from elsewhere has the shape of a result, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalestudy.analysis.summarise import study_rows
from scalestudy.results.shape import differences
from scalestudy.results.stored import read_result, write_result
from scalestudy.spec.layout import machine_of, result_file
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, result_of, write_results

Change = Callable[[dict[str, Any]], Any]


def wrong(run: Run, change: Change) -> list[str]:
    """How a result of another place differs from one of this run, after a change."""
    content = result_of(run)
    change(content)
    return list(differences(content, run.id, run.spec, MACHINE))


def test_a_result_is_read_as_it_was_written(study: Study) -> None:
    run = study.runs[0]
    write_result(result_file(MACHINE, run.id), result_of(run))
    assert read_result(MACHINE, run) == result_of(run)
    assert read_result(MACHINE, study.runs[1]) is None


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda c: c["metrics"].update(throughput_samples_per_s=-5), "its throughput_samples_per_s is `-5`"),
        (lambda c: c["metrics"].update(foreign_cpu_share=1.2), "its foreign_cpu_share is `1.2`"),
        (lambda c: c["metrics"].update(step_time_s=True), "its `metrics.step_time_s` is `true`"),
        (lambda c: c.update(window_ended_by="luck"), "its `window_ended_by` is `luck`"),
        (lambda c: c.update(status="great"), "its `status` is `great`"),
        (lambda c: c.update(metrics=[1, 2]), "its `metrics` is `[1, 2]`"),
        (lambda c: c.update(machine="tsubame3"), "it was measured on machine `tsubame3` and lies below results/fake"),
        (lambda c: c["spec"].update(batch={"per_rank": 64}), "its `spec` is not that of the run"),
        (lambda c: c["evaluations"][1].update(accuracy=7), "its `evaluations.1.accuracy` is `7`"),
        (lambda c: c.update(intervals={"training_time_s": [1, "x"]}), "its `intervals.training_time_s.1` is `x`"),
        (lambda c: c.update(launch={"hosts": "here"}), "its `launch.hosts` is `here`"),
        (lambda c: c.update(started="yesterday"), "its `started` is `yesterday`"),
        (lambda c: c.update(unchecked="x"), "its `unchecked` is `x`"),
    ],
)
def test_what_no_run_of_this_spec_can_have_written_is_named(study: Study, change: Change, difference: str) -> None:
    assert wrong(study.runs[0], change)[0].startswith(difference)


@pytest.mark.parametrize("machine", [None, MACHINE, f"{MACHINE}+night_2"])
def test_a_result_keeps_its_machine_and_a_campaign_is_only_a_name(study: Study, machine: str | None) -> None:
    assert wrong(study.runs[0], lambda content: content.update(machine=machine)) == []


@pytest.mark.parametrize("content", ["[]", "{}", "7", "{", '{"status": "valid"}'])
def test_a_file_that_is_not_a_result_is_invalid(study: Study, content: str) -> None:
    file = result_file(MACHINE, study.runs[0].id)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    found = read_result(MACHINE, study.runs[0])
    assert found is not None and found["status"] == "invalid"


@pytest.mark.parametrize(
    ("file", "machine"),
    [
        ("/home/u/results/abci+night_2/runs/r-1/result.json", "abci+night_2"),
        ("out/result.json", None),
        ("runs/r-1/result.json", None),
        ("results/local/tries/r-1/result.json", None),
    ],
)
def test_the_machine_of_a_result_is_that_of_its_path(file: str, machine: str | None) -> None:
    assert machine_of(Path(file)) == machine


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


def test_rows_say_how_windows_ended_and_what_was_not_checked_also_of_older_results(study: Study) -> None:
    first = study.runs[0].id
    new: dict[str, Any] = {"disturbed": True, "window_ended_by": "precision", "unchecked": ["reads on lustre"]}
    write_results(study, lambda run: new if run.id == first else {})
    rows, others = study_rows(study, MACHINE), len(study.runs) - 1
    assert rows["disturbed"].tolist() == [True] + [False] * others
    assert rows["window_ended_by"].tolist() == ["precision"] + [""] * others
    assert rows["unchecked"].tolist() == [1] + [0] * others
