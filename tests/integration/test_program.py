"""Runs that are a training script of the user's own."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.processes import wait_until
from tests.integration.project import jobs_in, make_project
from tests.integration.test_documents import blocks
from tests.integration.tries import ROOT, attempt, begin, completed, result, run

PAGE = "docs/howto/own_script.md"
TORCHRUN = "python -m torch.distributed.run --nproc-per-node {ranks_per_node} --master-port {master_port} train.py"
PLAIN = """
    import sys, time
    from scalestudy import report
    for step in range(int(sys.argv[1])):
        time.sleep(0.02)
        loss = 1 / (1 + step)
"""
"""A script without torch, whose import takes seconds."""
RESUMES = """\
import torch

model = torch.nn.Linear(16, 4)
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step():
    time.sleep(0.05)
    model(torch.randn(8, 16)).square().mean().backward()
    optimiser.step()


{}"""
REPORTS = "    report(step=step, samples=8, loss=loss)\n"


def settings(command: str, *more: str, **program: object) -> list[str]:
    text = json.dumps({"command": command, "files": ["train.py"], **program})
    return [f"program={text}", "measure.warmup_steps=5", "measure.steps=40", *more]


def write(folder: Path, text: str, more: str = "") -> None:
    (folder / "train.py").write_text(textwrap.dedent(text) + more, encoding="utf-8")


def alive(folder: Path) -> list[psutil.Process]:
    """Processes of the folder's script."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if "train.py" in (process.info["cmdline"] or ()) and process.info["cwd"] == str(folder):
            found.append(process)
    return found


def test_the_study_of_the_page_is_planned(tmp_path: Path) -> None:
    project = make_project(tmp_path / "clone", forked=True)
    project.study.unlink()
    (project.folder / "train.py").write_text(blocks(PAGE, "python")[0], encoding="utf-8")
    project.study.with_name("width.yaml").write_text(blocks(PAGE, "yaml")[0], encoding="utf-8")
    assert project.planned("width")["train"] == 6


def test_what_the_script_reports_is_marked_as_reported(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, REPORTS)
    done = attempt(tmp_path / "out", *settings("python train.py 1000"), cwd=tmp_path)
    assert completed(done), done.stdout
    found = result(tmp_path / "out")
    assert found["kinds"]["throughput_samples_per_s"] == found["kinds"]["loss"] == "reported"
    assert "wall_s" not in found["kinds"]
    assert re.search(r"Throughput .* samples/s reported$", done.stdout, re.MULTILINE), done.stdout
    metrics = found["metrics"]
    assert metrics["throughput_samples_per_s"] * metrics["step_time_s"] == pytest.approx(8)
    assert metrics["step_time_s"] > 0.02


def test_a_rank_whose_command_has_ended_leaves_the_commands_of_other_ranks_to_their_own_end(tmp_path: Path) -> None:
    write(tmp_path, "import os, time\ntime.sleep(os.environ['RANK'] == '0')\n")
    given = settings("python train.py", "measure.whole_program=true", "ranks=2", once_per="rank")
    done = attempt(tmp_path / "out", *given, cwd=tmp_path)
    assert completed(done), done.stdout
    assert result(tmp_path / "out")["metrics"]["wall_s"] > 1


def test_a_command_that_hides_its_environment_and_ignores_signals_ends_with_its_window(tmp_path: Path) -> None:
    text = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for step in range(100_000):
            time.sleep(0.02)
            print(f"iter {step} loss {1 / (1 + step)}", flush=True)
    """
    write(tmp_path, text)
    metrics = {"step": r"iter (\d+)", "loss": r"loss ([\d.e-]+)"}
    found = run(tmp_path / "out", *settings(f"env -i {sys.executable} train.py", metrics=metrics), cwd=tmp_path)
    assert alive(tmp_path) == []
    assert found["kinds"]["step_time_s"] == "reported"
    assert found["metrics"]["throughput_samples_per_s"] is None


def test_nothing_of_a_script_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    given = settings("setsid --fork --wait python train.py 100000", "measure.steps=90000")
    with begin(tmp_path / "out", *given, cwd=tmp_path) as process:
        try:
            assert wait_until(lambda: len(alive(tmp_path)) >= 2, 60), "the launcher, and the session that it started"
        finally:
            process.kill()
        assert wait_until(lambda: not alive(tmp_path), 20)


def test_a_script_goes_on_in_the_next_attempt_where_its_deadline_stopped_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMES.format(blocks(PAGE, "python")[1]), encoding="utf-8")
    given = settings("python train.py", resume=True)
    first = attempt(tmp_path / "out", *given, cwd=tmp_path, SCALESTUDY_DEADLINE=str(time.time() + 28))
    assert first.returncode == 75, first.stdout
    assert "because its command ended with status 75; the same command resumes it" in first.stdout
    found = run(tmp_path / "out", *given, cwd=tmp_path)
    stopped, ended = found["links"]
    assert stopped["steps"] + ended["steps"] >= 45
    assert stopped["steps"] > 0 < ended["steps"]
    assert found["instrument"]["steps_from"] == "hooks"
    assert found["instrument"]["device_name"] == "cpu"
    assert not (tmp_path / "out/checkpoint").exists()


def test_a_script_without_steps_goes_on_and_took_the_time_of_all_its_jobs(tmp_path: Path) -> None:
    text = """
        import os, pathlib, sys, time
        state = pathlib.Path(os.environ["SCALESTUDY_STATE"])
        done = len(state.read_text()) if state.exists() else 0
        time.sleep(0.4)
        state.write_text("x" * (done + 1))
        sys.exit(75 if done < 2 else 0)
    """
    write(tmp_path, text)
    given = settings("python train.py", "measure.whole_program=true", resume=True)
    for number in (1, 2):
        assert attempt(tmp_path / "out", *given, cwd=tmp_path).returncode == 75
        assert json.loads((tmp_path / "out/state.json").read_text())["progress"] == number
    assert run(tmp_path / "out", *given, cwd=tmp_path)["metrics"]["wall_s"] > 1.2


def test_two_ranks_of_torchrun_stop_when_they_are_asked_to_and_go_on(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/stand_ins/resuming.py", tmp_path / "train.py")
    given = settings(f"{TORCHRUN} 100000", "ranks=2", "measure.steps=40", resume=True)
    process = begin(tmp_path / "out", *given, cwd=tmp_path)
    with process:
        wait_until((tmp_path / "starts.txt").exists, 60)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    found = run(tmp_path / "out", *given, cwd=tmp_path)
    assert [int(line) > 0 for line in (tmp_path / "starts.txt").read_text().split()] == [False, True]
    assert len(found["links"]) == 2
    assert found["metrics"]["step_time_s"] == pytest.approx(0.05, rel=0.5)
    assert alive(tmp_path) == []


def test_a_script_that_cannot_go_on_is_ended_when_it_is_asked_to_stop(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    process = begin(tmp_path / "out", *settings("python train.py 100000", "measure.steps=90000"), cwd=tmp_path)
    with process:
        wait_until(lambda: alive(tmp_path) != [], 60)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=25)
    assert process.returncode not in (0, 75), said
    assert "stopped by SIGTERM; its program cannot go on (`program.resume` is not set)" in said
    assert alive(tmp_path) == []


def test_a_script_that_stops_without_its_state_fails(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, "    if step == 30: sys.exit(75)\n")
    done = attempt(tmp_path / "out", *settings("python train.py 1000", resume=True), cwd=tmp_path)
    assert done.returncode == 2
    assert "SCALESTUDY_STATE: the command ended with status 75 and had not written its state" in done.stdout


EXPLAINED = """\
question: Why is it slow?
base:
  program: {command: python train.py 1000, files: [train.py]}
  measure: {warmup_steps: 2, steps: 20}
explain: true
scales: {mini: {}}
"""
MADE_UP_ROUNDS = """
import sys
from scalestudy.cli import run_command
from scalestudy.program import takeaway
from tests.unit.program.test_explanation import rounds, run
takeaway.take_away = lambda *_, **more: rounds(whole=run(0.073), loading=run(0.038))
sys.exit(run_command(sys.argv[1:]))
"""
"""Makes an explained run from made-up rounds; test_tutorial.py and test_explain.py observe scripts."""


def test_a_study_explains_its_script_in_runs_of_their_own_and_the_report_says_what_they_found(tmp_path: Path) -> None:
    project = make_project(tmp_path / "clone", forked=True)
    project.study.write_text(EXPLAINED, encoding="utf-8")
    write(project.folder, PLAIN, REPORTS)
    planned = project.make("-n", "-p", "tiny")
    assert jobs_in(planned)["train"] == 2
    explained = re.search(r"train\.explained\.x1\.r0-[0-9a-f]{12}", planned)
    assert explained is not None
    made = f"results/local/runs/{explained[0]}"
    project.make(f"{made}/spec.json")
    here = {"SCALESTUDY_WARM": "0", "PYTHONPATH": str(ROOT)}
    project.must("python", "-c", MADE_UP_ROUNDS, "train", "--out", f"{made}/result.json", **here)
    found = json.loads((project.folder / made / "result.json").read_text())["explained"]
    loading = next(part for part in found["parts"] if part["name"] == "loading")
    assert loading["seconds"] == pytest.approx(0.035)
    rest = project.make("all")
    assert rest.partition("To do:")[2].startswith(" 1 run"), "the explained run is finished"
    page = (project.folder / "results/local/mini/report.html").read_text()
    assert "Where the time of a step goes" in page and "is waiting for data" in page
    assert "2 valid of 2 runs" in project.run("scalestudy", "summary").stdout
