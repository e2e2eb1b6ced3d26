"""Progress in words, and what `scalestudy status` reads back."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from scalestudy import processes
from scalestudy.commands import cluster as status
from scalestudy.errors import UserError
from snakemake_logger_plugin_scalestudy.progress import FILE, Progress, Task, current, duration, heading, stopped


def half_done() -> Progress:
    """At 1040 s: one of three runs is done after 10 s, the second has run for 10 s, the third is in a queue."""
    progress = Progress(command="snakemake all --profile profiles/local", began=1000.0)
    for n in range(3):
        progress.tasks[f"{n}.json"] = Task(f"{n}.json", "train", f"loading: workers {n}", "loading")
    first, second, third = progress.tasks.values()
    progress.begin(first, 1020.0)
    progress.end(first, 1030.0)
    progress.begin(second, 1030.0)
    progress.begin(third, 1030.0, "queued: Priority")
    return progress


def test_one_line_has_the_count_and_the_mean_of_finished_runs() -> None:
    progress = half_done()
    assert heading(progress) == "1 of 3 runs done · 10 s a run"
    progress.end(progress.tasks["2.json"], 1041.0, "failed")
    assert heading(progress) == "1 of 3 runs done, 1 failed · 10 s a run"


def test_a_job_in_a_queue_is_shown_as_waiting_with_its_reason() -> None:
    assert list(current(half_done(), 1040.0)) == ["loading: workers 1: 10 s", "loading: workers 2: waits (queued: Priority)"]  # fmt: skip


def test_the_time_in_a_queue_is_no_run_time() -> None:
    progress = half_done()
    third = progress.tasks["2.json"]
    progress.begin(third, 5000.0)
    progress.end(third, 5030.0)
    assert heading(progress) == "2 of 3 runs done · 20 s a run"


def test_what_is_left_is_said_with_the_command_that_resumes() -> None:
    progress = half_done()
    progress.end(progress.tasks["1.json"], 1041.0, "failed")
    assert stopped(progress) == "Of 3 jobs, 1 failed and 1 not done. To resume: snakemake all --profile profiles/local"


def test_times_are_written_in_the_unit_that_suits_them() -> None:
    assert [duration(value) for value in (40, 420, 12_600)] == ["40 s", "7 min", "3.5 h"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the progress of a driver that was killed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).parent.mkdir()
    keep(replace(half_done(), host=socket.gethostname(), process="1:0"))
    return tmp_path


def keep(progress: Progress) -> None:
    Path(FILE).write_text(json.dumps(progress.to_dict()))


def shown(*options: str) -> str:
    return CliRunner().invoke(status.status, options).output


def test_status_of_a_killed_driver_names_the_command_that_resumes(folder: Path) -> None:
    assert shown().splitlines() == [
        "1 of 3 runs done · 10 s a run",
        "  loading              1 of 3 runs done",
        "No driver is running. Of 3 jobs, 2 not done. To resume: snakemake all --profile profiles/local",
    ]


def test_status_counts_results_that_came_after_the_driver_was_gone(folder: Path) -> None:
    Path("1.json").write_text("{}")
    assert status.read_progress().runs == {"done": 2, "waiting": 1}


def test_a_result_from_before_the_call_does_not_count(folder: Path) -> None:
    Path("1.json").write_text("{}")
    os.utime("1.json", (900.0, 900.0))
    assert status.read_progress().runs == {"done": 1, "waiting": 2}


def test_status_names_a_living_driver_also_as_json(folder: Path) -> None:
    keep(replace(half_done(), host=socket.gethostname(), process=processes.identity(os.getpid()) or ""))
    found = json.loads(shown("--json"))
    assert found["runs"] == {"waiting": 1, "running": 1, "done": 1, "failed": 0}
    assert found["mean_s"] == 10
    assert found["driver"]["host"] == socket.gethostname()
    assert [run["name"] for run in found["running"]] == ["loading: workers 1"]
    assert found["queued"] == [{"name": "loading: workers 2", "reason": "queued: Priority"}]
    assert found["resume"] == "snakemake all --profile profiles/local"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tasks": 3}'])
def test_a_damaged_file_is_answered_with_a_sentence(folder: Path, text: str) -> None:
    Path(FILE).write_text(text)
    with pytest.raises(UserError, match=r"progress\.json"):
        status.read_progress()


def test_a_folder_in_which_nothing_was_started_is_answered_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="nothing has been started in this folder"):
        status.read_progress()
