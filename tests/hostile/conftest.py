"""The projects that inputs are handed to: each test has its own, beside a folder that nothing may touch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.harness import Refuse

STUDY = "question: How?\nbase: {strategy: allreduce}\nvary: {ranks: [1, 2]}\nscales: {mini: {}}\n"


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a study `s`, machines `lab` and `local`, a profile; it is the current folder."""
    top = tmp_path / "project"
    files = {
        "config/config.yaml": "machine: lab\nstudies: [s]\n",
        "config/studies/s.yaml": STUDY,
        "config/machines/lab.yaml": "nodes: 2\ndevices_per_node: 4\nmemory_gib: 16.0\n",
        "config/machines/local.yaml": "description: Here\n",
        "profiles/local/config.yaml": "executor: local\ncores: all\n",
        "Snakefile": "",
    }
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/diary.txt").write_text("private\n")
    monkeypatch.chdir(top)
    for name in ("SCALESTUDY_SITE", "SCALESTUDY_DATA", "SCALESTUDY_SET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SCALESTUDY_WARM", "0")
    monkeypatch.setenv("SCALESTUDY_LOCKS", str(tmp_path_factory.mktemp("locks")))
    monkeypatch.setenv("SCALESTUDY_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return top


@pytest.fixture
def refuse(project: Path, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]) -> Refuse:
    """Holds what commands do with a spoilt project against the promises."""
    return Refuse(project, capsys, record_property)
