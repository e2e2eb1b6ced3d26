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
    reference = Path("config/reference")
    reference.mkdir(parents=True)
    text = (Path(__file__).resolve().parents[3] / reference / "tsubame_resnet50.csv").read_text(encoding="utf-8")
    (reference / "tsubame_resnet50.csv").write_text(text, encoding="utf-8")
    return read_study(tmp_path)
