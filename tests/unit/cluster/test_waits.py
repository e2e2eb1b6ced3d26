"""What jobs waited in the queue, by queue and size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scalestudy.cluster.ledger.waits import Wait, Waits, read_waits


def ledger(folder: Path, *events: dict[str, Any]) -> Path:
    """A file with these lines, and one that was cut off."""
    file = folder / "jobs.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "submi')
    return file


def job(name: str, began_s: float | None = None, **more: Any) -> list[dict[str, Any]]:
    """A job submitted at 1000 that used 40 seconds, and whose end was noted at 2000."""
    ended = {"event": "ended", "name": name, "time_s": 2000, "used_s": 40}
    if began_s is not None:
        ended["began_s"] = began_s
    return [{"event": "submitted", "name": name, "time_s": 1000, "queue": "gpu", "nodes": 2}, {**ended, **more}]


def test_a_wait_lasts_from_the_submission_to_the_start_of_the_script(tmp_path: Path) -> None:
    file = ledger(tmp_path, *job("a", 1060), *job("late", 1500, unseen=True), *job("before its submission", 990))
    assert read_waits(file) == [Wait("gpu", 2, 60.0), Wait("gpu", 2, 500.0), Wait("gpu", 2, 0.0)]


def test_a_job_whose_script_never_began_has_no_wait(tmp_path: Path) -> None:
    assert read_waits(ledger(tmp_path, *job("not taken", used_s=0))) == []


def test_a_job_waits_in_the_queue_from_when_the_scheduler_took_it(tmp_path: Path) -> None:
    submitted, ended = job("kept out by a limit", 1060)
    taken = {"event": "id", "name": "kept out by a limit", "time_s": 1050, "id": "7"}
    assert read_waits(ledger(tmp_path, submitted, taken, ended)) == [Wait("gpu", 2, 10.0)]


def test_no_ledger_no_waits(tmp_path: Path) -> None:
    assert read_waits(tmp_path / "none") == []
    assert Waits().of("gpu", 1) is None


def test_jobs_of_the_same_queue_and_size_speak_before_others() -> None:
    alike = [Wait("gpu", nodes, seconds) for nodes, seconds in ((4, 100.0), (5, 300.0), (7, 200.0))]
    small = [Wait("gpu", 1, seconds) for seconds in (1.0, 2.0, 3.0)]
    other = [Wait("cpu", 4, 5.0)] * 2
    waits = Waits([*alike, *small, *other], "gpu")
    found = waits.of(None, 6)
    assert found is not None
    assert (found.median_s, found.p90_s, found.jobs, found.like) == (200.0, 280.0, 3, "jobs of 4 to 7 nodes in gpu")
    assert waits.of("gpu", 1).like == "jobs of 1 node in gpu"  # type: ignore[union-attr]
    assert waits.of("gpu", 2).jobs == 6  # type: ignore[union-attr]
    assert waits.of("cpu", 4).like == "all jobs"  # type: ignore[union-attr]
    assert Waits(other, "cpu").of(None, 4) is None


def test_each_kind_of_answer_stands_once() -> None:
    waits = Waits([Wait("", 1, seconds) for seconds in (10.0, 60.0, 500.0)])
    assert [one.median_s for one in waits.kinds([(None, 1), (None, 1)])] == [60.0]
