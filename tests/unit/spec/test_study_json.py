"""study.json: what is read from it is the expanded study, and one that has changed is expanded again."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.spec import study_json
from scalestudy.spec.config import read_machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study_json import expanded_study, stored_study, write_study
from tests.conftest import ROOT


def test_every_shipped_study_is_read_back_as_it_was(here: Path) -> None:
    (here / "config").symlink_to(ROOT / "config")
    for study in read_studies(None, "mini", read_machine("local")):
        write_study(study, "local")
        assert stored_study("local", "mini", study.name) == study


@pytest.fixture
def yaml(project: Path) -> Path:
    """A study file whose study.json is there."""
    file = project / "config/studies/a.yaml"
    file.write_text("question: How?\n")
    expanded_study("local", "paper", "a")
    return file


def test_a_study_whose_file_changes_or_machine_are_others_is_expanded_again(
    yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stored_study("local", "paper", "a") is not None
    assert stored_study("local", "mini", "a") is None
    monkeypatch.setenv("SCALESTUDY_SET", "repeats=2\ntrain.epochs=3")
    assert stored_study("local", "paper", "a") is None
    assert expanded_study("local", "paper", "a").repeats == 2
    assert stored_study("local", "paper", "a") is not None
    monkeypatch.delenv("SCALESTUDY_SET")
    yaml.write_text("question: Why?\n")
    assert expanded_study("local", "paper", "a").question == "Why?"
    expanded_study("local", "paper", "a")
    monkeypatch.setattr(study_json, "usable_cores", lambda: 4096)
    assert stored_study("local", "paper", "a") is None
    for file in ("config/machines/local.yaml", "config/claims/document.yaml", "config/extensions/nets.py"):
        expanded_study("local", "paper", "a")
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text("description: There\n" if file.endswith("local.yaml") else "# another line\n")
        assert stored_study("local", "paper", "a") is None, file
        Path(file).write_text("description: Here\n") if file.endswith("local.yaml") else Path(file).unlink()


def test_a_study_whose_program_changes_is_expanded_again(project: Path) -> None:
    program = "{command: python train.py, files: [train.py]}"
    (project / "config/studies/a.yaml").write_text(f"question: How?\nbase: {{program: {program}}}\n")
    runs = []
    for script in ("first = 1\n", "second = 2\n"):
        (project / "train.py").write_text(script)
        assert stored_study("local", "paper", "a") is None
        runs.append(expanded_study("local", "paper", "a").runs[0])
        assert stored_study("local", "paper", "a") is not None
    assert runs[0].id != runs[1].id and runs[0].configuration == runs[1].configuration
