"""`plan --actual` right after runs that were never expected, cancelled, adopted, chained, forgotten or made elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.ledger.actual import PlannedAndUsed, compare, note_plan, show_actual
from scalestudy.cluster.plan.expected import UNKNOWN, TimeEstimate
from scalestudy.cluster.resources import Resources
from scalestudy.errors import UserError
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, result_of

ASKED = Resources(2, 4, 4, 2, 1000, 60, None, gpus_held_per_node=4)
EXPECTED = TimeEstimate(90.0, 300.0, "repeats")
TIMES = {"started": "2026-11-23T10:00:00+00:00", "ended": "2026-11-23T10:00:50+00:00"}


@pytest.fixture(autouse=True)
def _no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)


def finished(run: Run, estimate: TimeEstimate | None = EXPECTED) -> None:
    """Its plan, as the driver notes it, and its result."""
    if estimate is not None:
        note_plan(MACHINE, run.id, ASKED, estimate)
    write_result(result_file(MACHINE, run.id), result_of(run, **TIMES))


def attempt(run: Run, name: str, number: int, used_s: float | None, machine: str = MACHINE, **end: Any) -> None:
    """Lines of the ledger about one job; None: its end was never noted."""
    events = [
        {"event": "submitted", "name": name, "job": f"train {machine} {run.id}", "link": number, "nodes": 2, "gpus": 8},
        {"event": "id", "name": name, "id": name},
    ]
    if used_s is not None:
        events.append({"event": "ended", "name": name, "used_s": used_s, **end})
    file = Path(".scalestudy/jobs.jsonl")
    file.parent.mkdir(exist_ok=True)
    with open(file, "a") as stream:
        stream.writelines(json.dumps(event) + "\n" for event in events)


def only(study: Study) -> PlannedAndUsed:
    """The one run that can be compared."""
    [row], _ = compare([study], MACHINE)
    return row


def test_a_run_that_nobody_expected_has_no_upper_end_and_counts_as_no_hit(study: Study) -> None:
    run = study.runs[0]
    finished(run, UNKNOWN)
    attempt(run, "a", 1, 200)
    row = only(study)
    assert (row.kind, row.high_s, row.used_s, row.source) == ("unknown", None, 200.0, "job script")
    text, data = show_actual([], [study], MACHINE)
    assert data["inside_by_kind"] == {"unknown": {"runs": 1, "inside": 0}}
    assert "fell within" not in text


def test_a_cancelled_job_and_a_failed_one_led_to_no_result_and_are_said_apart(study: Study) -> None:
    run = study.runs[0]
    attempt(run, "cancelled", 1, 900, cause="cancelled by its owner or an administrator (CANCELLED)")
    attempt(run, "never began", 1, 0)
    finished(run)
    attempt(run, "good", 1, 200)
    row = only(study)
    assert (row.used_s, row.attempts, row.lost_s) == (200.0, 1, 900.0)
    text, data = show_actual([], [study], MACHINE)
    assert data["total"]["lost"] == 2.0
    assert "2.0 more by jobs without a result" in text


def test_a_chain_counts_all_its_jobs(study: Study) -> None:
    run = study.runs[0]
    finished(run)
    for number, used_s in enumerate((100, 120, 30), 1):
        attempt(run, f"a{number}", number, used_s)
    row = only(study)
    assert (row.used_s, row.attempts, row.lost_s) == (250.0, 3, 0.0)


def test_a_chain_of_a_run_that_was_forgotten_does_not_count_for_the_new_one(study: Study) -> None:
    run = study.runs[0]
    finished(run)
    for name, number, used_s in (("a", 1, 100), ("b", 2, 50), ("c", 1, 110), ("never began", 2, 0), ("d", 2, 60)):
        attempt(run, name, number, used_s)
    row = only(study)
    assert (row.used_s, row.attempts, row.lost_s) == (170.0, 2, 150.0)


def test_an_adopted_job_counts_by_what_its_script_said(study: Study) -> None:
    run = study.runs[0]
    finished(run)
    attempt(run, "a", 1, 210, unseen=True)
    assert (only(study).used_s, only(study).source) == (210.0, "job script")


def test_a_job_whose_driver_died_before_its_end_counts_by_its_result(study: Study) -> None:
    run = study.runs[0]
    attempt(run, "of an earlier time", 1, 500)
    finished(run)
    attempt(run, "nobody saw its end", 1, None)
    row = only(study)
    assert (row.used_s, row.source, row.lost_s) == (10.0, "result", 500.0)


def test_the_same_run_on_another_machine_is_another_run(study: Study) -> None:
    run = study.runs[0]
    finished(run)
    attempt(run, "here", 1, 200)
    attempt(run, "there", 1, 5000, machine="other")
    assert (only(study).used_s, only(study).lost_s) == (200.0, 0.0)


def test_a_run_that_no_driver_made_is_named_and_not_compared(study: Study) -> None:
    first, second = study.runs[:2]
    finished(first)
    attempt(first, "a", 1, 200)
    finished(second, None)
    rows, unplanned = compare([study], MACHINE)
    assert ([row.run for row in rows], unplanned) == ([first.id], [second.id])
    text, data = show_actual([], [study], MACHINE)
    assert data["without_plan"] == [second.id]
    assert "1 runs have a result and no plan" in text


def test_without_any_plan_there_is_nothing_to_compare(study: Study) -> None:
    finished(study.runs[0], None)
    with pytest.raises(UserError, match="no finished run has a plan"):
        show_actual([], [study], MACHINE)


def test_hours_and_hits_are_those_of_the_runs(study: Study) -> None:
    for run, used_s in zip(study.runs[:2], (200, 301), strict=True):
        finished(run)
        attempt(run, run.id, 1, used_s)
    text, data = show_actual([], [study], MACHINE)
    assert data["total"] == {"runs": 2, "reserved": 16.0, "low": 0.4, "high": 1.3333, "used": 1.1133, "lost": 0.0}
    assert "Expected from repeats: 1 of 2 runs fell within their P5 to P95 interval" in text
    assert text.splitlines()[1].split()[-4:] == ["repeats", "job", "script", study.runs[0].id]
