"""Hours used and waits by the executor's ledger, and `plan --actual`: runs chained, cancelled, forgotten, made elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.ledger import (
    LedgerAttempt,
    Waits,
    compare,
    note_plan,
    read_ledger,
    show_actual,
    start_up,
)
from scalestudy.cluster.plan.expected import UNKNOWN, TimeEstimate
from scalestudy.cluster.resources import Resources
from scalestudy.errors import UserError
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file
from scalestudy.spec.study import Run, Study
from tests.unit.analysis.fake_results import MACHINE, result_of

RUN = "resnet50.synthetic.allreduce.x4.r0-901ce9d351cc"
ASKED = Resources(2, 4, 4, 2, 1000, 60, None, gpus_held_per_node=4)
EXPECTED = TimeEstimate(90.0, 300.0, "repeats")
TIMES = {"started": "2026-11-23T10:00:00+00:00", "ended": "2026-11-23T10:00:50+00:00"}


@pytest.fixture(autouse=True)
def _no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALESTUDY_SITE", raising=False)


def attempt(
    name: str, used_s: float | None = 40, number: int = 1, *, run: str = RUN, machine: str = MACHINE, **end: Any
) -> None:
    """Lines of the ledger about one job of 2 nodes, submitted at 1000; None: its end was never noted."""
    label = f"train {machine} {run}"
    job = {"name": name, "job": label, "link": number, "nodes": 2, "gpus": 8, "queue": "gpu"}
    events: list[dict[str, Any]] = [{"event": "submitted", "time_s": 1000, **job}]
    if used_s is not None:
        events.append({"event": "ended", "name": name, "time_s": 2000, "used_s": used_s, **end})
    file = Path(".scalestudy/jobs.jsonl")
    file.parent.mkdir(exist_ok=True)
    with open(file, "a") as stream:
        stream.writelines(json.dumps(event) + "\n" for event in events)


def test_the_ledger_is_read_by_job_and_a_line_that_was_cut_off_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_ledger() == []
    attempt("a.1", 42, machine="box", cause="finished", began_s=1060)
    with open(".scalestudy/jobs.jsonl", "a") as file:
        file.write('{"event": "sub')
    assert read_ledger() == [LedgerAttempt(RUN, 8, 2, 42, machine="box", queue="gpu", wait_s=60.0, cause="finished")]


def test_a_wait_lasts_from_the_id_of_the_scheduler_to_the_start_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    attempt("never began", 0)
    attempt("before its submission", began_s=990)
    attempt("kept out by a limit", None)
    with open(".scalestudy/jobs.jsonl", "a") as file:
        file.write(json.dumps({"event": "id", "name": "kept out by a limit", "time_s": 1050, "id": "7"}) + "\n")
        file.write(json.dumps({"event": "ended", "name": "kept out by a limit", "time_s": 1, "began_s": 1060}) + "\n")
    assert [one.wait_s for one in read_ledger()] == [None, 0.0, 10.0]


def test_waits_of_the_same_queue_and_size_come_before_others() -> None:
    def waited(queue: str, nodes: int, *seconds: float) -> list[LedgerAttempt]:
        return [LedgerAttempt(RUN, nodes=nodes, queue=queue, wait_s=wait) for wait in seconds]

    other = waited("cpu", 4, 5.0, 5.0)
    alike = [*waited("gpu", 4, 100.0), *waited("gpu", 5, 300.0), *waited("gpu", 7, 200.0)]
    waits = Waits([*alike, *waited("gpu", 1, 1.0, 2.0, 3.0), *other], "gpu")
    found = waits.of(None, 6)
    assert found is not None
    assert (found.median_s, found.p90_s, found.jobs, found.like) == (200.0, 280.0, 3, "jobs of 4 to 7 nodes in gpu")
    likes = [one.like for one in (waits.of("gpu", 1), waits.of("gpu", 2), waits.of("cpu", 4)) if one]
    assert likes == ["jobs of 1 node in gpu", "jobs of all sizes in gpu", "all jobs"]
    assert Waits(other, "cpu").of(None, 4) is None


def test_what_jobs_take_outside_their_runs_is_learned_from_three_on() -> None:
    links = [LedgerAttempt(f"run{i}", used_s=30.0 + i) for i in range(3)]
    wall_s = {f"run{i}": [20.0] for i in range(3)}
    assert start_up(wall_s, links) == pytest.approx((10.2, 11.8))
    assert start_up(wall_s, links[:2]) is None


def finished(run: Run, estimate: TimeEstimate | None = EXPECTED) -> None:
    """Its plan, as the driver notes it, and its result."""
    if estimate is not None:
        note_plan(MACHINE, run.id, ASKED, estimate)
    write_result(result_file(MACHINE, run.id), result_of(run, **TIMES))


def only(study: Study) -> dict[str, Any]:
    """The one run that can be compared."""
    [row], _ = compare([study], MACHINE)
    return row


def test_a_run_without_an_estimate_has_no_upper_end_and_counts_as_no_hit(study: Study) -> None:
    finished(study.runs[0], UNKNOWN)
    attempt("a", 200, run=study.runs[0].id)
    row = only(study)
    assert [row[key] for key in ("kind", "high_s", "used_s", "source")] == ["unknown", None, 200.0, "job script"]
    text, data = show_actual([], [study], MACHINE)
    assert data["inside_by_kind"] == {"unknown": {"runs": 1, "inside": 0}}
    assert "fell within" not in text


Job = tuple[str, float | None, int]


@pytest.mark.parametrize(
    ("jobs", "used_s", "attempts", "lost_s"),
    [
        ([("cancelled", 900, 1), ("never began", 0, 1), ("good", 200, 1)], 200, 1, 900),
        ([("a", 100, 1), ("b", 120, 2), ("c", 30, 3)], 250, 3, 0),
        ([("a", 100, 1), ("b", 50, 2), ("of a forgotten run's successor", 110, 1), ("never began", 0, 2), ("d", 60, 2)], 170, 2, 150),
        ([("of an earlier time", 500, 1), ("its driver died before its end", None, 1)], 10, 1, 500),
    ],
)  # fmt: skip
def test_the_jobs_of_the_last_chain_led_to_the_result(
    study: Study, jobs: list[Job], used_s: float, attempts: int, lost_s: float
) -> None:
    run = study.runs[0]
    finished(run)
    for job in jobs:
        attempt(*job, run=run.id)
    attempt("of another machine", 5000, run=run.id, machine="other")
    row = only(study)
    assert (row["used_s"], row["attempts"], row["lost_s"]) == (used_s, attempts, lost_s)
    assert row["source"] == ("result" if used_s == 10 else "job script")


def test_a_run_that_no_driver_made_is_named_and_not_compared(study: Study) -> None:
    first, second = study.runs[:2]
    finished(second, None)
    with pytest.raises(UserError, match="no finished run has a plan"):
        show_actual([], [study], MACHINE)
    finished(first)
    text, data = show_actual([], [study], MACHINE)
    assert ([row["run"] for row in data["runs"]], data["without_plan"]) == ([first.id], [second.id])
    assert "1 runs have a result and no plan" in text


def test_hours_and_hits_are_those_of_the_runs(study: Study) -> None:
    for run, used_s in zip(study.runs[:2], (200, 301), strict=True):
        finished(run)
        attempt(run.id, used_s, run=run.id)
    text, data = show_actual([], [study], MACHINE)
    assert data["total"] == {"runs": 2, "reserved": 16.0, "low": 0.4, "high": 1.3333, "used": 1.1133, "lost": 0.0}
    assert "Expected from repeats: 1 of 2 runs fell within their P5 to P95 interval" in text
    assert text.splitlines()[1].split()[-4:] == ["repeats", "job", "script", study.runs[0].id]
