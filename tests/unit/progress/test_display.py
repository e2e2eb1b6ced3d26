"""What is shown while jobs run, on a terminal and elsewhere, and what `scalestudy status` reads back."""

from __future__ import annotations

import io
import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from scalestudy import processes
from scalestudy.commands import status
from scalestudy.errors import UserError
from snakemake_logger_plugin_scalestudy.display import Live, Plain
from snakemake_logger_plugin_scalestudy.forecast import Expected
from snakemake_logger_plugin_scalestudy.progress import FILE, Progress, Task, heading, stopped

EXPECTED = Expected(10, 10, "repeats")


def half_done(folder: Path = Path()) -> Progress:
    """At 40 s: a dataset of 20 s and one of three runs are done, the second run has been going for 10 s."""
    progress = Progress(command="snakemake all --profile profiles/local", began=1000.0, at_once=1)
    progress.add([Task("build", "dataset", "preparing d", "", Expected(20, 20, "built"))])
    progress.add(
        Task(str(folder / f"{n}.json"), "train", f"loading: loader workers per rank {n}", "loading", EXPECTED)
        for n in range(3)
    )
    progress.begin("build", 1000.0)
    progress.end("build", 1020.0)
    progress.begin(str(folder / "0.json"), 1020.0)
    progress.end(str(folder / "0.json"), 1030.0)
    progress.begin(str(folder / "1.json"), 1030.0)
    return progress


def test_one_line_says_runs_rate_and_time_left() -> None:
    # One run in the 20 s since it began; left are the rest of the second run and a third one, about 11 s.
    assert heading(half_done(), 1040.0) == "1 of 3 runs done · 3.0 runs/min · 8 to 15 s left"


def test_a_terminal_shows_a_bar_and_what_runs_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, highlight=False, markup=False)
    live = Live(half_done(), console, clock=lambda: 1040.0)
    live.shown(running=True)
    live.say("[1/3] loading: done [a line]")
    live.shown(running=False)
    text = out.getvalue()
    assert "━" in text
    assert "1 of 3 runs done · 3.0 runs/min" in text
    assert "loading: loader workers per rank 1: 10 s of about 10 s" in text
    assert "[1/3] loading: done [a line]" in text
    assert live.live is None


def test_elsewhere_a_minute_of_silence_is_ended_by_what_is_running(capsys: pytest.CaptureFixture[str]) -> None:
    clock = [1040.0]
    plain = Plain(half_done(), clock=lambda: clock[0])
    plain.tick()
    assert capsys.readouterr().err == ""
    clock[0] = 1101.0
    plain.tick()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("… loading: loader workers per rank 1: 71 s of about 10 s · 1 of 3 runs done · ")
    plain.tick()
    assert capsys.readouterr().err == ""


def test_a_dataset_is_named_while_it_is_prepared() -> None:
    progress = Progress(began=1000.0)
    progress.add([Task("build", "dataset", "preparing d", "", Expected(120.0, 600.0, "any dataset"))])
    progress.begin("build", 1000.0)
    out = io.StringIO()
    live = Live(progress, Console(file=out, force_terminal=True, width=100), clock=lambda: 1060.0)
    live.shown(running=True)
    live.close()
    assert "preparing d: 60 s of about 4 min" in out.getvalue()


def test_what_is_left_is_said_with_the_command_that_resumes() -> None:
    progress = half_done()
    progress.end("1.json", 1041.0, "failed")
    assert stopped(progress) == (
        "Of 4 jobs, 1 failed and 1 not done. To resume: snakemake all --profile profiles/local"
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the progress of a driver that was killed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).parent.mkdir()
    keep(replace(half_done(), host=socket.gethostname(), process="1:0"))
    return tmp_path


def keep(progress: Progress) -> None:
    Path(FILE).write_text(json.dumps(progress.plain()))


def test_status_of_a_killed_driver_says_so_and_how_to_resume(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status.show_status(watch=False, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 of 3 runs done · ")
    assert lines[1] == "  loading              1 of 3 runs done"
    assert lines[2] == (
        "No driver is running. Of 4 jobs, 2 not done. To resume: snakemake all --profile profiles/local"
    )


def test_status_counts_results_that_came_after_the_driver_was_gone(folder: Path) -> None:
    Path("1.json").write_text("{}")
    assert status.read_progress(2000.0).runs == {"done": 2, "waiting": 1}


def test_a_result_from_before_the_call_does_not_count(folder: Path) -> None:
    Path("1.json").write_text("{}")
    os.utime("1.json", (900.0, 900.0))
    assert status.read_progress(2000.0).runs == {"done": 1, "waiting": 2}


def test_status_names_a_living_driver_also_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(replace(half_done(), host=socket.gethostname(), process=processes.identity(os.getpid()) or ""))
    status.show_status(watch=False, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == {"waiting": 1, "running": 1, "done": 1, "failed": 0}
    assert found["driver"]["host"] == socket.gethostname()
    assert [run["name"] for run in found["running"]] == ["loading: loader workers per rank 1"]
    assert found["resume"] == "snakemake all --profile profiles/local"
    assert found["left_s"][0] < found["left_s"][1]


def test_watching_ends_with_the_driver(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status.show_status(watch=True, as_json=False)
    assert "To resume: snakemake all --profile profiles/local" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', '{"format": 1, "tasks": 3}'])
def test_a_damaged_file_is_answered_with_a_sentence(folder: Path, text: str) -> None:
    Path(FILE).write_text(text)
    with pytest.raises(UserError, match=r"progress\.json: (cannot be read as the progress|not readable)"):
        status.read_progress(2000.0)


def test_a_folder_in_which_nothing_was_started_is_answered_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="nothing has been started in this folder"):
        status.read_progress(2000.0)
