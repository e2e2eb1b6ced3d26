"""Files that are whole or absent."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from scalestudy.files import atomic_path, write_text


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


def test_a_write_follows_the_umask_and_never_changes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)  # it is the process's: other threads would write with the cleared one
            write_text(tmp_path / "result.json", "{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "result.json").stat().st_mode) == 0o640
