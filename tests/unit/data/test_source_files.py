"""Data is that of the files it was made from: another folder, a file more or other contents are named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scalestudy.cli import run_command
from scalestudy.data.manifest import read_manifest
from scalestudy.data.prepare.datasets import ensure
from scalestudy.errors import UserError
from tests.unit.data.conftest import Prepared, photo


def another_picture(root: Path) -> None:
    (root / "train/cat/9.jpg").write_bytes(photo(96, 64))


def other_pictures_of_the_same_size(root: Path) -> None:
    file = root / "train/cat/0.jpg"
    file.write_bytes(bytes(reversed(file.read_bytes())))
    os.utime(file, (1_900_000_000, 1_900_000_000))


@pytest.mark.parametrize("change", [another_picture, other_pictures_of_the_same_size])
def test_a_changed_source_is_named_with_the_command_that_uses_it_as_it_is(
    prepared: Prepared, picture_folder: Path, change: Callable[[Path], None]
) -> None:
    path, _ = prepared(source="image_folder", root=str(picture_folder))
    ensure(path)
    change(picture_folder)
    with pytest.raises(UserError, match="files were added, removed or changed") as error:
        ensure(path)
    assert f"scalestudy prepare --again --out {path}" in str(error.value)


def test_data_that_is_made_again_has_another_fingerprint(prepared: Prepared, picture_folder: Path) -> None:
    """Runs record it, so that those of before and after do not pass for repeats of one measurement."""
    path, before = prepared(source="image_folder", root=str(picture_folder), on_error="skip")
    other_pictures_of_the_same_size(picture_folder)
    assert run_command(["prepare", "--again", "--out", str(path)]) == 0
    ensure(path)
    assert read_manifest(path).fingerprint != before.fingerprint
