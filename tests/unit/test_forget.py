"""`scalestudy forget`: what is said about a run that is not there, or is being made."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path

import pytest

from scalestudy.cli import run_command
from scalestudy.launch.trainer_lock import trainer_of
from scalestudy.spec.layout import run_folder
from tests.integration.processes import wait_until
from tests.unit.test_locks import trainer

RUN = "small_cnn.digits.allreduce.x2.r0-0123456789ab"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(here: Path) -> Path:
    """The folder of a run that has no result."""
    made = here / run_folder("local", RUN)
    made.mkdir(parents=True)
    return made


def test_a_wrong_name_is_answered_with_the_nearest_run_or_their_number(here: Path, capsys: Capture) -> None:
    runs = [f"small_cnn.digits.allreduce.x2.r{number}-0123456789ab" for number in range(300)]
    for run in runs:
        run_folder("local", run).mkdir(parents=True)
    for wrong, remedy in (
        (f"{runs[7]}x", f"did you mean `{runs[7]}`?"),
        ("WRONG", "its folder has 300 runs"),
    ):
        assert run_command(["forget", wrong, "--yes"]) == 2
        said = capsys.readouterr().err
        assert "there is no run" in said and remedy in said and len(said) < 270


def test_a_run_that_is_being_made_is_not_deleted(folder: Path, capsys: Capture) -> None:
    with trainer(folder) as process:
        assert run_command(["forget", RUN, "--yes"]) == 2
        assert f"is being made now, by process {process.pid}: nothing is deleted" in capsys.readouterr().err
        assert folder.is_dir()
    # Killed just after it was forked, the process that touches the lock holds it for an instant more.
    assert wait_until(lambda: trainer_of(folder) is None, 10)
    assert run_command(["forget", RUN, "--yes"]) == 0
    assert not folder.exists()


@pytest.mark.parametrize("answer", ["", "n\n"])
def test_without_a_yes_nothing_is_deleted_and_the_option_is_named(
    answer: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert run_command(["forget", RUN]) == 2
    assert capsys.readouterr().err.endswith(
        "scalestudy: forget: nothing is deleted\n    --yes deletes without asking\n"
    )
    assert folder.is_dir()


def test_a_run_that_begins_while_the_question_stands_is_not_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with ExitStack() as meanwhile:
        monkeypatch.setattr("click.confirm", lambda *_, **__: meanwhile.enter_context(trainer(folder)) is not None)
        assert run_command(["forget", RUN]) == 2
        assert "is being made now" in capsys.readouterr().err
        assert folder.is_dir()
