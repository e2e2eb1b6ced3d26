"""How a verdict is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.claims.words import side_text
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies

ROOT = Path(__file__).resolve().parents[3]
SLOWED = [{"kind": "slow_decode", "seconds": 0.1}]


def test_a_list_is_said_by_its_label_or_as_a_choice_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (study,) = (each for each in find_studies(None, "mini", Machine()).studies if each.name == "loader_workers")
    assert side_text(study, {"faults": SLOWED}) == "0.1 s slower per batch"
    assert side_text(study, {"loader.workers": [1, 2]}) == "loader workers per rank 1 or 2"
