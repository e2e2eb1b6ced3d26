"""Every test has its own folder as current directory: results/ and config/ are relative to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.spec.study import Study
from tests.unit.analysis.fake_results import read_study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two strategies, one and two ranks, three repeats; no results yet."""
    monkeypatch.chdir(tmp_path)
    return study_in(tmp_path)


def study_in(folder: Path) -> Study:
    """The study of `fake_results`, with its published numbers, in a folder."""
    reference = folder / "config/reference"
    reference.mkdir(parents=True)
    shipped = Path(__file__).resolve().parents[3] / "config/reference/tsubame_resnet50.csv"
    (reference / shipped.name).write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    return read_study(folder)
