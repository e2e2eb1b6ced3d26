"""Whole workflows as other people have them, driven by Snakemake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from running import REAL, Cluster, drive, events

pytestmark = pytest.mark.slow
of_any_scheduler = pytest.mark.skipif(bool(REAL), reason="the scheduler makes no difference: tried with the stand-in")
HERE = Path(__file__).parent


def test_scripts_groups_retries_and_configuration_work(cluster: Cluster, tmp_path: Path) -> None:
    everyday = Path(shutil.copytree(HERE / "everyday", tmp_path / "every day"))
    groups = ("--groups", "text=texts", "count=texts", "--group-components", "texts=2")
    done = drive(everyday, "--config", "word=two words", *groups)
    assert done.returncode == 0, done.stdout
    assert (everyday / "summary.txt").read_text() == "3 words\n" * 2
    assert (everyday / "second.txt").exists()
    # Two groups in one, the summary, and the rule that is tried twice inside.
    assert len(events(everyday, "submitted")) == 3
    if not REAL:  # the stand-in keeps the submit lines
        [group] = [line for line in cluster.lines() if "-t 10 " in line]
        # What the members need side by side.
        assert "-N 1 --ntasks-per-node=1 --cpus-per-task=4 --mem=800M -t 10 " in group
        [summary] = [line for line in cluster.lines() if " --nice=10 " in line]
        assert "-N 1 --ntasks-per-node=1 --cpus-per-task=1 --mem=250M -o " in summary


@of_any_scheduler
@pytest.mark.skipif(
    shutil.which("rsync") is None, reason="the storage plugin `fs` copies with rsync, which is not here"
)
def test_files_in_a_storage_are_fetched_and_stored_by_the_job(cluster: Cluster, tmp_path: Path) -> None:
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
