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

DATA = "results/data/digits-1/manifest.json"


def make_handler(**settings: Any) -> LogHandler:
    common = {"dryrun": False, "quiet": None, "stdout": False, "printshellcmds": False, "verbose": False}
    return LogHandler(SimpleNamespace(debug_dag=False, **{**common, **settings}), None)  # type: ignore[arg-type]


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogHandler]:
    """The display of a call that prepares one dataset."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/snakemake"), "all", "--profile", "profiles/my site"])
    job = SimpleNamespace(rule=SimpleNamespace(name="dataset"), output=[DATA], wildcards_dict={"dataset": "digits-1"})
    made = make_handler()
    dag = SimpleNamespace(needrun_jobs=lambda: iter([job]))
    made.reads(SimpleNamespace(chosen=[]), SimpleNamespace(dag=dag, is_rule=lambda name: False))
    yield made
    made.close()


def send(handler: LogHandler, event: LogEvent, **facts: Any) -> None:
    handler.emit(logging.makeLogRecord({"event": event, "levelno": logging.INFO, "msg": "", **facts}))


def begin(handler: LogHandler) -> None:
    send(handler, LogEvent.RUN_INFO, stats={"dataset": 1, "total": 1})
    facts = {"wildcards": {"dataset": "digits-1"}, "output": [DATA], "log": ["results/data/prepare.log"]}
    send(handler, LogEvent.JOB_INFO, jobid=3, rule_name="dataset", **facts)


def test_a_stop_names_the_command_that_resumes_and_the_folder_knows_it(
    handler: LogHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(handler)
    handler.close()
    assert capsys.readouterr().err.splitlines() == [
        "To do: 1 dataset",
        "Of 1 job, 1 not done. To resume: .venv/bin/snakemake all --profile 'profiles/my site'",
    ]
    kept = json.loads(Path(".scalestudy/progress.json").read_text())
    assert kept["command"] == ".venv/bin/snakemake all --profile 'profiles/my site'"
    assert kept["process"] == ""


def test_a_job_that_waits_in_a_queue_counts_from_its_own_start(handler: LogHandler) -> None:
    begin(handler)
    task = handler.progress.tasks[DATA]
    handler.emit(logging.makeLogRecord({"msg": "", "multinode_waits": (3, "held: JobHeldUser")}))
    assert (task.state, task.reason) == ("waiting", "held: JobHeldUser")
    handler.emit(logging.makeLogRecord({"msg": "", "multinode_waits": (3, "")}))
    assert (task.state, task.reason) == ("running", "")
    handler.emit(logging.makeLogRecord({"msg": "ran for 90 s", "multinode_ran": (3, 90.0)}))
    handler.emit(logging.makeLogRecord({"msg": "ran for 90 s", "multinode_ran": (99, 90.0)}))
    send(handler, LogEvent.JOB_FINISHED, job_id=3)
    assert 90 <= task.ended - task.began < 120


def test_a_run_that_waits_for_this_host_is_shown_as_waiting(
    handler: LogHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(handler)
    task, log = handler.progress.tasks[DATA], Path("results/data/prepare.log")
    log.parent.mkdir(parents=True)
    log.write_text("scalestudy: waiting for run a (process 7) to end\n")
    handler.tick(handler.said_at + 61)
    assert "dataset digits-1: waits (waiting for run a (process 7) to end)" in capsys.readouterr().err
    log.write_text(log.read_text() + "step 1\n")
    handler.tick(handler.said_at + 10)
    assert task.state == "running"
    handler.tick(handler.said_at + 71)
    assert "dataset digits-1: 61 s" in capsys.readouterr().err


@pytest.mark.parametrize(("is_written", "shown"), [(False, False), (True, True)])
def test_a_failure_quotes_its_own_log_and_not_that_of_an_earlier_attempt(
    handler: LogHandler, capsys: pytest.CaptureFixture[str], is_written: bool, shown: bool
) -> None:
    log = Path("results/data/prepare.log")
    log.parent.mkdir(parents=True)
    log.write_text("stopped by SIGTERM\n")
    os.utime(log, (1, 1))
    begin(handler)
    if is_written:
        log.write_text("no space left\n")
    send(handler, LogEvent.JOB_ERROR, jobid=3, rule_name="dataset", rule_msg="job 45: left the queue", log=[str(log)])
    said = capsys.readouterr().err
    assert "FAILED dataset digits-1\n    job 45: left the queue" in said
    assert ("whole log" in said) is shown
    assert "SIGTERM" not in said


def test_a_disk_that_is_full_ends_no_display(handler: LogHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scalestudy.files.write_json", fail)
    handler.keep(at_once=True)


def test_what_ended_well_needs_no_command(handler: LogHandler, capsys: pytest.CaptureFixture[str]) -> None:
    begin(handler)
    send(handler, LogEvent.JOB_FINISHED, job_id=3)
    handler.close()
    assert "resume" not in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["--lint", "--report=page.html", "--unlock", "--summary", "--delete-all-output"])
def test_calls_that_run_no_job_keep_the_output_of_snakemake(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["snakemake", mode, "--profile", "profiles/local"])
    handler = make_handler()
    assert not handler.writes_to_stream
    handler.emit(logging.makeLogRecord({"levelno": logging.WARNING, "msg": "Lints for rule a"}))
    handler.close()
    assert capsys.readouterr() == ("", "")


def test_a_program_elsewhere_is_resumed_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/snakemake", "gpu_scaling"])
    assert resume_command() == "snakemake gpu_scaling"
