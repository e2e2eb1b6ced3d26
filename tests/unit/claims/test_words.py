"""How a verdict is said."""

from __future__ import annotations

from pathlib import Path

from scalestudy.claims.words import side_text
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies

SLOWED = [{"kind": "slow_decode", "seconds": 0.1}]


STUDY = """question: How?
vary:
  loader.workers: [1, 2]
  faults: [{value: [], label: as it is}, {value: [{kind: slow_decode, seconds: 0.1}], label: 0.1 s slower per batch}]
"""


def test_a_list_is_said_by_its_label_or_as_a_choice_of_values(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY)
    (study,) = read_studies(["s"], "paper", Machine(), folder=tmp_path)
    assert side_text(study, {"faults": SLOWED}) == "0.1 s slower per batch"
    assert side_text(study, {"loader.workers": [1, 2]}) == "loader workers per rank 1 or 2"
