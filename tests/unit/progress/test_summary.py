"""The account at the end: why runs have no result, and which report holds the studies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scalestudy.analysis.summarise import summarise
from scalestudy.cli import run_command
from scalestudy.commands.results import LEDGER, ends_of_jobs, why_missing
from scalestudy.report.page import write_report
from scalestudy.spec.layout import result_file
from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import MACHINE, write_results


@pytest.mark.parametrize(
    ("state", "of_job", "log", "said"),
    [
        ({"state": "failed", "cause": "rank 1 was killed"}, "", "many\nlines\n", "no result: rank 1 was killed (log: log)"),
        (None, "", "scalestudy: wrong\n", "no result: scalestudy: wrong (log: log)"),
        (None, "", "", "no result; its log is empty: log"),
        ({"state": "checkpointed", "cause": "the walltime ends"}, "", None, "stopped at a checkpoint: the walltime ends"),
        (None, "", None, "not run"),
        (None, "cancelled by its owner", None, "no result: cancelled by its owner"),
        (None, "out of memory (OUT_OF_MEMORY)", "epoch 3\n", "no result: out of memory (OUT_OF_MEMORY) (log: log)"),
        (None, "its command failed", "MemoryError: no\n", "no result: MemoryError: no (log: log)"),
    ],
)  # fmt: skip
def test_the_cause_of_a_missing_result_is_that_of_the_run_or_of_its_job(
    tmp_path: Path, state: object, of_job: str, log: str | None, said: str
) -> None:
    file = tmp_path / "log" / "train.log"
    file.parent.mkdir()
    if log is not None:
        file.write_text(log)
    if state is not None:
        (tmp_path / "state.json").write_text(json.dumps(state))
    assert why_missing(tmp_path, of_job).replace(str(file), "log") == said


def test_the_end_of_a_runs_job_is_read_from_the_ledger_and_a_line_that_was_cut_off_is_left_out(here: Path) -> None:
    assert ends_of_jobs("box") == {}
    made = "resnet50.synthetic.allreduce.x4.r0-901ce9d351cc"
    events: list[dict[str, object]] = [
        {"name": "a.1", "job": f"scalestudy_train box {made}", "id": "7"},
        {"name": "a.1", "job": f"scalestudy_train box {made}", "cause": "out of memory"},
        {"name": "b.1", "job": f"train big_box {made}", "cause": "cancelled by its owner"},
        {"name": "c.1", "job": f"bundle results/box/runs/{made.replace('r0', 'r1')}/result.json", "cause": "finished"},
    ]
    LEDGER.parent.mkdir()
    LEDGER.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "sub')
    assert ends_of_jobs("box") == {made: "out of memory", made.replace("r0", "r1"): "finished"}


def test_a_report_of_other_studies_is_not_named_and_what_is_older_than_a_result_is_marked(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(study)
    summarise(study, MACHINE)
    monkeypatch.setattr("scalestudy.commands.results.studies_of", lambda *_: [study])
    figure, page = (Path("results", MACHINE, "paper", name) for name in ("figures/scaling/time.svg", "report.html"))
    figure.parent.mkdir(parents=True)
    figure.touch()

    def printed() -> str:
        run_command(["summary", "--machine", MACHINE, "--scale", "paper"])
        return capsys.readouterr().out

    def marked() -> list[bool]:
        said = printed()
        return ["; 0 of " in said, f"Report: {page}  (older than its runs)" in said]

    write_report([], MACHINE, "paper", page)
    assert "Report" not in printed()
    write_report([study], MACHINE, "paper", page)
    assert marked() == [False, False]
    os.utime(figure, (10**9, 10**9))
    assert marked() == [True, False]
    for run in study.runs:
        result_file(MACHINE, run.id).unlink()
    assert marked() == [True, True]
