"""Whole workflows as other people have them, driven by Snakemake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from running import drive

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.mark.skipif(
    shutil.which("rsync") is None, reason="the storage plugin `fs` copies with rsync, which is not here"
)
def test_files_in_a_storage_are_fetched_and_stored_by_the_job(tmp_path: Path) -> None:
    storage, folder = tmp_path / "storage", tmp_path / "folder"
    storage.mkdir()
    folder.mkdir()
    (storage / "in.txt").write_text("stored\n")
    (folder / "Snakefile").write_text(
        'rule copy:\n    input: "in.txt"\n    output: "out.txt"\n    shell: "cp {input} {output}"\n'
    )
    done = drive(folder, "--default-storage-provider", "fs", "--default-storage-prefix", str(storage), "out.txt")
    assert done.returncode == 0, done.stdout
    assert (storage / "out.txt").read_text() == "stored\n"
