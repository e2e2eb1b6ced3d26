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


def test_a_wrong_name_is_answered_with_the_nearest_run(folder: Path, capsys: Capture) -> None:
    assert run_command(["forget", f"{RUN}x", "--yes"]) == 2
    assert f"did you mean `{RUN}`?" in capsys.readouterr().err


def test_a_run_that_is_being_made_is_not_deleted(folder: Path, capsys: Capture) -> None:
    with trainer(folder) as process:
        assert run_command(["forget", RUN, "--yes"]) == 2
        assert f"is being made now, by process {process.pid}: nothing is deleted" in capsys.readouterr().err
        assert folder.is_dir()
    # Killed just after it was forked, the process that touches the lock holds it for an instant more.
    assert wait_until(lambda: trainer_of(folder) is None, 10)
    assert run_command(["forget", RUN, "--yes"]) == 0
    assert not folder.exists()


def test_without_a_yes_nothing_is_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run_command(["forget", RUN]) == 2
    assert "nothing is deleted" in capsys.readouterr().err
    assert folder.is_dir()


def test_a_run_that_begins_while_the_question_stands_is_not_deleted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with ExitStack() as meanwhile:
        monkeypatch.setattr("click.confirm", lambda *_, **__: meanwhile.enter_context(trainer(folder)) is not None)
        assert run_command(["forget", RUN]) == 2
        assert "is being made now" in capsys.readouterr().err
        assert folder.is_dir()
