"""The command line: its verbs, what they import, and `scalestudy check`."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from scalestudy import cli
from tests.conftest import ROOT
from tests.integration.processes import wait_until


@pytest.mark.parametrize("verb", cli.VERBS)
def test_each_verb_is_a_command_of_that_name_with_an_example(verb: str) -> None:
    command = cli.cli.get_command(click.Context(cli.cli), verb)
    assert command.name == verb
    assert f"Example: scalestudy {verb}" in (command.help or "")
    shown = CliRunner().invoke(cli.cli, [verb, "--help"]).output
    assert shown.count("Example: ") == len(re.findall(r"^  Example: ", shown, re.MULTILINE)), (
        "each is a line of its own"
    )


def test_a_mistyped_verb_gets_the_nearest_one() -> None:
    assert "Did you mean 'doctor'?" in CliRunner().invoke(cli.cli, ["docter"]).output


HEAVY = "torch numpy pandas pydantic snakemake"
HELP = f"""
import sys
from scalestudy.cli import run_command
for words in (["--help"], ["--version"], ["plan", "--help"]):
    run_command(words)
heavy = "{HEAVY}"
"""
BEFORE_A_RUN = """
import sys, scalestudy.dag, scalestudy.cluster.plan.show, scalestudy.cluster.doctor.examine
import scalestudy.data.prepare.datasets, scalestudy.launch.launch
heavy = "torch"
"""


@pytest.mark.parametrize("code", [HELP, BEFORE_A_RUN], ids=["help", "before a run"])
def test_help_imports_nothing_heavy_and_what_is_done_before_a_run_no_torch(code: str) -> None:
    command = [sys.executable, "-c", f"{code}print(sorted(sys.modules.keys() & heavy.split()))"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_outside_of_a_project_that_is_said_to_verbs_that_need_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("check", "claims", "new"):
        assert cli.run_command([verb], by_hand=True) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith(f"scalestudy: {here}: no project is here"), said.err
    assert cli.run_command(["check", "--help"], by_hand=True) == 0


@pytest.fixture
def folder(project: Path) -> Path:
    """A project with a study at `mini` and one at `paper` alone."""
    (project / "config/config.yaml").write_text("scale: mini\nstudies: [small]\n")
    (project / "config/studies/small.yaml").write_text("question: How?\nscales: {mini: {}}\n")
    (project / "config/studies/large.yaml").write_text("question: How?\n")
    return project


def test_keys_of_runs_and_measured_columns_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word, line in (
        ("loader.workers", "  loader.workers: "),
        ("answers.say", "  answers.say: text needed"),
        ("step_time", "  step_time_s: Step time s\n      Mean step"),
    ):
        assert cli.run_command(["check", "--keys", word]) == 0
        assert line in capsys.readouterr().out


def test_check_lists_the_errors_of_every_study_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config/config.yaml").write_text("scale: mini\n")
    (folder / "config/studies/all.yaml").write_text("question: How?\n")
    (folder / "config/studies/wrong.yaml").write_text("question: How?\nbase: {modle: mlp}\n")
    assert cli.run_command(["check"]) == 2
    assert capsys.readouterr().err == (
        "scalestudy: config/studies/all.yaml: `all` cannot be the name of a study\n"
        "    use at most 64 lower-case letters, digits and `_`, starting with a letter, and not the name of a rule\n"
        "config/studies/wrong.yaml:2: base.modle: unknown key\n"
        "    did you mean `model`?\n"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EFBIG, "File too large", "there"), "there: File too large\n    raise the limit of the size of"),
        (MemoryError(), "out of memory: no more could be allocated\n    close other programs"),
        (ImportError("a.so: failed to map segment from shared object"), "a.so: failed to map segment"),
        (RuntimeError("can't start new thread"), "can't start new thread\n    no process or thread can be started"),
    ],
)
def test_an_error_of_the_system_is_one_message_with_what_to_do_next(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_called", fail)
    assert cli.run_command(["list"]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"scalestudy: {said}")
    assert message.endswith("then run the same command again\n")


def test_a_signal_ends_a_command_with_a_message(folder: Path) -> None:
    lock, said = folder / f"scalestudy-{os.getuid()}.lock", folder / "said"
    environment = {**os.environ, "SCALESTUDY_LOCKS": str(folder), "PYTHONPATH": str(ROOT / "workflow")}
    code = "import sys; from scalestudy.cli import main; main()"
    command = [sys.executable, "-c", code, "summarise", "--study", "small"]
    with open(lock, "w") as held, open(said, "wb") as output:
        lock.chmod(0o600)
        fcntl.flock(held, fcntl.LOCK_EX)  # as a measured run holds it: the command waits
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            assert wait_until(lambda: "waiting for" in said.read_text(), 60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 143
        finally:
            process.kill()
    assert said.read_text().splitlines()[-2:] == [
        "scalestudy: stopped by SIGTERM",
        "    to resume, run the same command again",
    ]
