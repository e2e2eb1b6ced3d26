"""Files that are whole or absent."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from scalestudy.errors import UserError
from scalestudy.files import atomic_path, read_table, write_text


@pytest.mark.parametrize("named", [False, True])
def test_an_error_while_writing_names_the_file_that_was_to_be(tmp_path: Path, named: bool) -> None:
    file = tmp_path / "result.json"
    file.write_text("before")
    with pytest.raises(OSError) as caught, atomic_path(file) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", *([str(temporary)] if named else []))
    assert caught.value.filename == str(file)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_table_that_a_spreadsheet_saved_with_semicolons_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("\ufeffimages;model\r\n5;vgg16\r\n", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        read_table(file, ("images",))
    assert str(raised.value) == f"{file}:1: its cells are separated by ';'\n    save it with commas between cells"


def test_a_write_follows_the_umask_and_never_changes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)  # it is the process's: other threads would write with the cleared one
            write_text(tmp_path / "result.json", "{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "result.json").stat().st_mode) == 0o640
