"""`scalestudy prepare` as a process: killed in the middle, started again, told wrong things."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cli import run_command
from scalestudy.data.manifest import read_manifest
from tests.unit.data.test_shards import FORMS, contents, payloads

JPEG = {"source": "synthetic_jpeg", "samples": 800, "width": 32, "height": 32, "mean_kib": 1.0}
SMALL_SHARDS = {**FORMS, "tar": {"shard": {"format": "tar", "mib": 0.6}}}

# Kills the process in the middle of the part after the second one that is recorded.
KILLER = """
import itertools, os, signal, sys
from scalestudy import cli
from scalestudy.data.prepare import parts
os.sched_getaffinity = lambda _process: {0}
save, recorded = parts._save, []
def saved(job, number, part):
    save(job, number, part)
    recorded.append(number)
def dying(made, count):
    for number, one in enumerate(itertools.islice(made, count)):
        if len(recorded) == 2 and number == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        yield one
parts._save, parts.islice = saved, dying
sys.exit(cli.run_command(sys.argv[1:]))
"""


def arguments(folder: Path, spec: dict[str, Any]) -> list[str]:
    return ["prepare", "--spec", json.dumps(spec), "--out", str(folder / "manifest.json")]


@pytest.mark.parametrize("form", ["files", "tar", "lmdb"])
def test_after_a_kill_whole_parts_are_kept_and_the_result_is_the_same(form: str, tmp_path: Path) -> None:
    spec = {**JPEG, **SMALL_SHARDS[form]}
    command = [sys.executable, "-c", KILLER, *arguments(tmp_path / "killed", spec)]
    assert subprocess.run(command, check=False, timeout=300).returncode == -signal.SIGKILL
    work = tmp_path / "killed/.bulk.making-kept"
    left = [file.name for file in (tmp_path / "killed").iterdir() if not file.name.startswith(work.name)]
    assert left == [".bulk.lock"]
    records = sorted(file.name for file in (work / "parts").iterdir() if file.suffix == ".npz")
    shutil.copytree(tmp_path / "killed", tmp_path / "other_plan")
    kept = {file: file.stat() for file in work.rglob("[!.]*") if file.suffix in (".jpg", ".tar")}
    assert records == ["train-0000000.npz", "train-0000001.npz"]
    if form == "files":
        assert 600 <= len(kept) < 700  # two parts of 250, what was begun, and files written ahead
    elif form == "tar":
        assert sorted(file.name for file in kept) == ["train-000000.tar", "train-000001.tar"]

    assert [run_command(arguments(tmp_path / name, spec)) for name in ("killed", "never")] == [0, 0]
    assert sorted(file.name for file in (tmp_path / "killed").iterdir()) == [".bulk.lock", "bulk", "manifest.json"]
    one, other = (read_manifest(tmp_path / name / "manifest.json") for name in ("killed", "never"))
    assert one.fingerprint == other.fingerprint and one.train == other.train
    if form == "lmdb":  # its pages may lie otherwise
        files = [tmp_path / name / "manifest.json" for name in ("killed", "never")]
        assert payloads(files[0], one) == payloads(files[1], other)
    else:
        assert contents(tmp_path / "killed/bulk") == contents(tmp_path / "never/bulk")
    for file, before in list(kept.items())[:500]:
        after = (tmp_path / "killed/bulk" / file.relative_to(work)).stat()
        part = int(file.stem) // 250 if form == "files" else 0
        assert part >= 2 or (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    if form == "tar":  # what a kill left of another plan is not used
        other = {**spec, "samples": 300}
        assert [run_command(arguments(tmp_path / name, other)) for name in ("other_plan", "another")] == [0, 0]
        assert contents(tmp_path / "other_plan/bulk") == contents(tmp_path / "another/bulk")
