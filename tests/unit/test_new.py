"""`scalestudy new`: the file that it writes checks clean, and no file is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.cli import run_command

pytestmark = pytest.mark.usefixtures("project")
FILE = Path("config/studies/mine.yaml")


def test_a_file_that_is_there_is_never_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    FILE.write_text("mine\n")
    assert run_command(["new", "mine"]) == 2
    assert FILE.read_text() == "mine\n"
    assert "is there already, and is not replaced" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Mine", "../mine", "all", "train"])
def test_a_name_that_no_study_can_have_is_one_message(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["new", name]) == 2
    assert f"`{name}` cannot be the name of a study" in capsys.readouterr().err
    assert list(FILE.parent.iterdir()) == []


def test_a_command_with_an_open_quote_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["new", "mine", "--program", "python 'train.py"]) == 2
    said = "scalestudy: --program python 'train.py: cannot be split into words: No closing quotation\n    close its quotes\n"
    assert capsys.readouterr().err.endswith(said)
