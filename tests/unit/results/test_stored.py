"""Results are those of their run and machine; one from elsewhere has the shape of a result, too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalestudy.analysis.recorded import read_records
from scalestudy.analysis.summarise import study_rows
from scalestudy.results.shape import differences
from scalestudy.results.stored import read_result, write_result
from scalestudy.spec.layout import machine_of, result_file
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, result_of, write_results

Change = Callable[[dict[str, Any]], Any]
GOOD = {"epoch": 1, "step": 10, "time_s": 2.5, "accuracy": 0.5, "auroc": None}


def stored(run: Run) -> Path:
    write_result(result_file(MACHINE, run.id), result_of(run))
    return result_file(MACHINE, run.id)


def wrong(run: Run, change: Change) -> list[str]:
    """How a result of another place differs from one of this run, after a change."""
    content = result_of(run)
    change(content)
    return list(differences(content, run.id, run.spec, MACHINE))


def test_a_result_is_read_as_it_was_written(study: Study) -> None:
    run = study.runs[0]
    stored(run)
    assert read_result(MACHINE, run) == result_of(run)
    assert read_result(MACHINE, study.runs[1]) is None


def test_the_result_of_another_run_is_named(study: Study) -> None:
    first, second = study.runs[:2]
    result_file(MACHINE, second.id).parent.mkdir(parents=True)
    result_file(MACHINE, second.id).write_bytes(stored(first).read_bytes())
    found = read_result(MACHINE, second)
    assert found is not None
    assert f"it is the result of `{first.id[:57]}" in found["reason"]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda c: c["metrics"].update(throughput_samples_per_s=-5), "its throughput_samples_per_s is `-5`"),
        (lambda c: c["metrics"].update(throughput_samples_per_s="fast"), "its throughput_samples_per_s is `fast`"),
        (lambda c: c["metrics"].update(foreign_cpu_share=1.2), "its foreign_cpu_share is `1.2`"),
        (lambda c: c.update(disturbed="no"), "its `disturbed` is `no`"),
        (lambda c: c.update(window_ended_by="luck"), "its `window_ended_by` is `luck`"),
        (lambda c: c["metrics"].update(accuracy=1.01), "its accuracy is `1.01`"),
        (lambda c: c["metrics"].update(step_time_s=True), "its step_time_s is `true`"),
        (lambda c: c.update(status="great"), "its `status` is `great`"),
        (lambda c: c.update(metrics=[1, 2]), "its `metrics` is `[1, 2]`"),
        (lambda c: c.update(reason={"a": 1}), 'its `reason` is `{"a": 1}`'),
        (lambda c: c.update(spec=7), "its `spec` is `7`"),
        (lambda c: c.update(machine="tsubame3"), "it was measured on machine `tsubame3` and lies below results/fake"),
        (lambda c: c.update(machine=["fake"]), 'it was measured on machine `["fake"]` and lies below results/fake'),
        (lambda c: c["metrics"].update(throttled_share=-0.1), "its throttled_share is `-0.1`"),
        (
            lambda c: c["spec"].update(batch={"per_rank": 64}),
            "its `spec` is not that of the run",
        ),
    ],
)
def test_what_no_run_of_this_spec_can_have_written_is_named(study: Study, change: Change, difference: str) -> None:
    assert wrong(study.runs[0], change)[0].startswith(difference)


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "7", "{", "\x00", '{"status": "valid"}', '{"metrics": {"loss": NaN}, "digest": ""}', "[" * 100_000],
)
def test_a_file_that_is_not_a_result_is_invalid(study: Study, content: str) -> None:
    run = study.runs[0]
    file = stored(run)
    file.write_text(content)
    found = read_result(MACHINE, run)
    assert found is not None
    assert found["status"] == "invalid"


NESTED = {
    "evaluations.0": {"evaluations": [5]},
    "evaluations.1.time_s": {"evaluations": [GOOD, {**GOOD, "time_s": "x"}]},
    "evaluations.0.accuracy": {"evaluations": [{**GOOD, "accuracy": 7}]},
    "intervals.training_time_s": {"intervals": {"training_time_s": "x"}},
    "intervals.training_time_s.1": {"intervals": {"training_time_s": [1, "x"]}},
    "kinds.training_time_s": {"kinds": {"training_time_s": 5}},
    "resolved": {"resolved": [1]},
    "resolved.nodes": {"resolved": {"nodes": "many"}},
    "launch.hosts": {"launch": {"hosts": "here"}},
    "instrument.cpu": {"instrument": {"cpu": ["a"]}},
    "warnings": {"warnings": "x"},
    "links.0.hours": {"links": [{"hours": "x"}]},
    "started": {"started": "yesterday"},
    "emulated": {"emulated": "no"},
    "steps_done": {"steps_done": -1},
    "stage.0": {"stage": [1]},
}


@pytest.mark.parametrize("place", NESTED)
def test_a_part_of_a_wrong_type_is_named_however_deep_it_lies(study: Study, place: str) -> None:
    (difference,) = wrong(study.runs[0], lambda content: content.update(NESTED[place]))
    assert difference.startswith(f"its `{place}` is ")


@pytest.mark.parametrize(
    ("file", "machine"),
    [
        ("results/local/runs/r-1/result.json", "local"),
        ("/home/u/results/abci+night_2/runs/r-1/result.json", "abci+night_2"),
        ("out/result.json", None),
        ("runs/r-1/result.json", None),
        ("results/local/tries/r-1/result.json", None),
        ("/result.json", None),
    ],
)
def test_the_machine_of_a_result_is_that_of_its_path(file: str, machine: str | None) -> None:
    assert machine_of(Path(file)) == machine


def test_a_result_keeps_its_machine_and_a_campaign_is_only_a_name(study: Study) -> None:
    run = study.runs[0]
    for machine in (None, MACHINE, f"{MACHINE}+night_2"):
        assert wrong(run, lambda content, machine=machine: content.update(machine=machine)) == []


def test_the_results_of_another_machine_under_this_ones_name_enter_no_table(study: Study) -> None:
    write_results(study, lambda run: {"machine": "tsubame3"} if run.spec.ranks == 2 else {"machine": MACHINE})
    rows = study_rows(study, MACHINE)
    assert set(rows.loc[rows["ranks"] == 1, "status"]) == {"valid"}
    assert set(rows.loc[rows["ranks"] == 2, "status"]) == {"invalid"}
    assert rows.loc[rows["ranks"] == 2, "throughput_samples_per_s"].isna().all()
    assert {record.is_valid for record in read_records(MACHINE).runs if record.spec.ranks == 2} == set()


def test_a_folder_elsewhere_may_have_any_name(study: Study, tmp_path: Path) -> None:
    write_results(study, lambda run: {"machine": MACHINE})
    shutil.copytree(tmp_path / "results" / MACHINE, tmp_path / "before")
    assert all(record.is_valid for record in read_records(str(tmp_path / "before")).runs)


def test_rows_say_which_windows_were_disturbed_and_how_they_ended_also_of_older_results(study: Study) -> None:
    first, second, *_ = study.runs
    new: dict[str, Any] = {"disturbed": True, "window_ended_by": "precision"}
    write_results(
        study, lambda run: new if run.id == first.id else {"window_ended_by": None} if run.id == second.id else {}
    )
    rows = study_rows(study, MACHINE)
    assert rows["disturbed"].tolist() == [True] + [False] * (len(study.runs) - 1)
    assert rows["window_ended_by"].tolist() == ["precision"] + [""] * (len(study.runs) - 1)
    assert set(rows["status"]) == {"valid"}


def test_what_could_not_be_checked_is_a_list_of_sentences_and_older_results_have_none(study: Study) -> None:
    run = study.runs[0]
    assert wrong(run, lambda content: content.update(unchecked=["reads on lustre"])) == []
    assert wrong(run, lambda content: content.pop("unchecked", None)) == []
    assert wrong(run, lambda content: content.update(unchecked="x")) == ["its `unchecked` is `x`"]


def test_rows_count_what_could_not_be_checked(study: Study) -> None:
    for number, run in enumerate(study.runs):
        write_result(
            result_file(MACHINE, run.id), result_of(run, **({} if number else {"unchecked": ["reads on lustre"]}))
        )

    assert study_rows(study, MACHINE)["unchecked"].tolist() == [1] + [0] * (len(study.runs) - 1)
