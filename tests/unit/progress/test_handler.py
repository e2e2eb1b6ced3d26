"""Snakemake's events become lines, and a stop names the command that resumes."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_scalestudy import LogHandler, resume_command

MANIFEST = "results/data/d/manifest.json"


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogHandler]:
    """The display of a call for one study, not on a terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/snakemake"), "all", "--profile", "profiles/my site"])
    job = SimpleNamespace(
        rule=SimpleNamespace(name="dataset"), output=[MANIFEST], priority=1, wildcards_dict={"dataset": "d"}
    )
    made = LogHandler(SimpleNamespace(dryrun=False, quiet=None, stdout=False), None)  # type: ignore[arg-type]
    workflow = SimpleNamespace(dag=SimpleNamespace(needrun_jobs=lambda: iter([job])))
    made.reads(SimpleNamespace(resources=SimpleNamespace(jobs_at_once=1), chosen=[]), workflow)
    yield made
    made.close()


def send(handler: LogHandler, event: LogEvent, **facts: Any) -> None:
    record = logging.makeLogRecord({"event": event, "levelno": logging.INFO, "msg": "", **facts})
    handler.handle_event(event, record)


def begin_dataset(handler: LogHandler) -> None:
    send(handler, LogEvent.RUN_INFO, stats={"dataset": 1, "total": 1})
    log = "results/data/d/prepare.log"
    job = {"jobid": 3, "rule_name": "dataset", "wildcards": {"dataset": "d"}, "output": [MANIFEST], "log": [log]}
    send(handler, LogEvent.JOB_INFO, **job)


def test_a_stop_names_the_command_that_resumes_and_the_folder_knows_it(
    handler: LogHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_dataset(handler)
    handler.close()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "Of 1 job, 1 not done. To resume: .venv/bin/snakemake all --profile 'profiles/my site'"
    kept = json.loads(Path(".scalestudy/progress.json").read_text())
    assert kept["command"] == ".venv/bin/snakemake all --profile 'profiles/my site'"
    assert kept["process"] == ""


def test_the_wait_of_a_job_in_the_queue_is_no_part_of_what_it_took(
    handler: LogHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_dataset(handler)
    task = handler.progress.tasks[MANIFEST]
    task.began -= 3600  # submitted an hour ago
    capsys.readouterr()
    handler.handle_event(None, logging.makeLogRecord({"msg": "dataset: ran for 90 s", "multinode_ran": (3, 90.0)}))
    handler.handle_event(None, logging.makeLogRecord({"msg": "other: ran for 90 s", "multinode_ran": (99, 90.0)}))
    assert capsys.readouterr().err == ""
    send(handler, LogEvent.JOB_FINISHED, job_id=3)
    assert 90 <= task.took_s < 120


def test_a_file_of_thousands_of_runs_is_not_written_at_each_ones_end_but_at_the_last(handler: LogHandler) -> None:
    begin_dataset(handler)
    file = Path(".scalestudy/progress.json")
    file.unlink()
    handler.keep_took_s = 0.5
    handler.keep(at_once=True)
    assert not file.exists()
    handler.close()
    assert json.loads(file.read_text())["process"] == ""


def test_a_disk_that_is_full_ends_no_display(handler: LogHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scalestudy.files.write_json", fail)
    handler.keep(at_once=True)


def test_what_ended_well_needs_no_command(handler: LogHandler, capsys: pytest.CaptureFixture[str]) -> None:
    begin_dataset(handler)
    send(handler, LogEvent.JOB_FINISHED, job_id=3)
    handler.close()
    assert "resume" not in capsys.readouterr().err


def test_a_program_elsewhere_is_resumed_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/snakemake", "gpu_scaling"])
    assert resume_command() == "snakemake gpu_scaling"


@pytest.mark.parametrize(("written", "shown"), [(False, False), (True, True)])
def test_a_failure_quotes_its_own_log_and_not_that_of_an_earlier_attempt(
    handler: LogHandler, capsys: pytest.CaptureFixture[str], written: bool, shown: bool
) -> None:
    log = Path("results/data/d/prepare.log")
    log.parent.mkdir(parents=True)
    log.write_text("stopped by SIGTERM\n")
    os.utime(log, (1, 1))
    begin_dataset(handler)
    if written:
        log.write_text("no space left\n")
    send(handler, LogEvent.JOB_ERROR, jobid=3, rule_name="dataset", rule_msg="job 45: left the queue", log=[str(log)])
    said = capsys.readouterr().err
    assert "job 45: left the queue" in said
    assert ("whole log" in said) is shown
    assert "SIGTERM" not in said
