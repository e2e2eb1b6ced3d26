"""Snakemake's events become lines."""

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

from snakemake_logger_plugin_scalestudy import Job, LogHandler, outcome, text_of

DATA = "results/data/digits-1/manifest.json"
LOG = Path("results/data/prepare.log")


def make_handler() -> LogHandler:
    common = {"dryrun": False, "quiet": None, "stdout": False, "printshellcmds": False, "verbose": False}
    return LogHandler(SimpleNamespace(debug_dag=False, **common), None)  # type: ignore[arg-type]


@pytest.fixture
def handler(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogHandler]:
    """The display of a call that prepares one dataset."""
    monkeypatch.setattr(sys, "argv", [str(here / ".venv/bin/snakemake"), "all", "--profile", "profiles/my site"])
    LOG.parent.mkdir(parents=True)
    made = make_handler()
    made.reads(SimpleNamespace(chosen=[]), SimpleNamespace(is_rule=lambda name: False))
    yield made
    made.close()


def send(handler: LogHandler, event: LogEvent | None = None, **facts: Any) -> None:
    handler.emit(logging.makeLogRecord({"event": event, "levelno": logging.INFO, "msg": "", **facts}))


def begin(handler: LogHandler) -> Job:
    send(handler, LogEvent.RUN_INFO, stats={"dataset": 1, "total": 1})
    facts = {"wildcards": {"dataset": "digits-1"}, "output": [DATA], "log": [str(LOG)]}
    send(handler, LogEvent.JOB_INFO, jobid=3, rule_name="dataset", **facts)
    return handler.jobs[3]


@pytest.mark.parametrize("is_done", [False, True])
def test_a_stop_names_the_command_that_resumes_what_is_left(
    handler: LogHandler, capsys: pytest.CaptureFixture[str], is_done: bool
) -> None:
    begin(handler)
    if is_done:
        send(handler, LogEvent.JOB_FINISHED, job_id=3)
    handler.close()
    command = ".venv/bin/snakemake all --profile 'profiles/my site'"
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "To do: 1 dataset"
    assert lines[1] == ("dataset digits-1: " if is_done else f"Of 1 job, 1 not done. To resume: {command}")


def test_a_job_that_waits_in_a_queue_counts_from_its_own_start(
    handler: LogHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    task = begin(handler)
    send(handler, multinode_waits=(3, "held: JobHeldUser"))
    handler.tick(handler.said_at + 61)
    assert "… 0 of 1 jobs done · dataset digits-1: waits (held: JobHeldUser)" in capsys.readouterr().err
    send(handler, multinode_waits=(3, ""))
    assert task.reason == ""
    handler.failed[("results/runs/a.json",)] = "train"
    handler.tick(handler.said_at + 61)
    assert "… 0 of 1 jobs done, 1 failed · dataset digits-1: " in capsys.readouterr().err
    began = task.began
    send(handler, multinode_waits=(3, ""))
    assert 0 < began == task.began


@pytest.mark.parametrize(("rest", "hints"), [("name=value pairs. (Unparsable value: 'all')", 1), ("an identifier.", 0)])
def test_a_word_that_is_no_setting_is_explained_and_a_wrong_name_of_one_is_not(rest: str, hints: int) -> None:
    record = logging.makeLogRecord({"msg": f"Traceback:\nInvalid config definition: {rest}"})
    assert text_of(record).startswith(f"Invalid config definition: {rest}")
    assert text_of(record).count("--config takes all words") == hints


def test_a_run_that_waits_for_this_host_is_shown_as_waiting(
    handler: LogHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(handler)
    LOG.write_text("scalestudy: waiting for run a (process 7) to end\n")
    handler.tick(handler.said_at + 59)
    assert capsys.readouterr().err == "To do: 1 dataset\n"
    handler.tick(handler.said_at + 61)
    assert "dataset digits-1: waits (waiting for run a (process 7) to end)" in capsys.readouterr().err
    LOG.write_text("step 1\n")
    handler.tick(handler.said_at + 61)
    assert "dataset digits-1: 61 s" in capsys.readouterr().err


def test_a_failure_does_not_quote_the_log_of_an_earlier_attempt(
    handler: LogHandler, capsys: pytest.CaptureFixture[str]
) -> None:
    LOG.write_text("stopped by SIGTERM\n")
    os.utime(LOG, (1, 1))
    begin(handler)
    send(handler, LogEvent.JOB_ERROR, jobid=3, rule_name="dataset", rule_msg="job 45: left the queue", log=[str(LOG)])
    said = capsys.readouterr().err
    assert "FAILED dataset digits-1\n    job 45: left the queue" in said and "SIGTERM" not in said


@pytest.mark.parametrize("mode", ["--lint", "--report=page.html", "--summary"])
def test_calls_that_run_no_job_keep_the_output_of_snakemake(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["snakemake", mode, "--profile", "profiles/local"])
    handler = make_handler()
    assert not handler.writes_to_stream
    send(handler, levelno=logging.WARNING, msg="Lints for rule a")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"metrics": {"throughput_samples_per_s": 1240.4, "accuracy": 0.912}}, "1,240 samples/s, accuracy 0.912"),
        ({"metrics": {"throughput_samples_per_s": None, "wall_s": 1.294}}, "1.3 s in all"),
        (
            {"metrics": {"wall_s": 9.0}, "explained": {"sentences": ["A step takes 4 ms.", "More."]}},
            "A step takes 4 ms.",
        ),
        ({"status": "skipped", "reason": "no GPU", "metrics": {}}, "skipped: no GPU"),
    ],
)
def test_a_run_is_told_by_its_rate_or_as_a_whole_program_by_its_time_and_an_explained_one_by_its_step(
    tmp_path: Path, result: dict[str, Any], words: str
) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"status": "valid", "reason": None, **result}))
    assert outcome(str(tmp_path / "result.json")) == words
