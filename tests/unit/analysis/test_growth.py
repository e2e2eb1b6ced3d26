"""Work that grows with the runs of a study grows no faster than they do: counted in calls, not in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from scalestudy.analysis import drift, identity, workload
from scalestudy.analysis.summarise import summarise
from scalestudy.claims import select as claim_sides
from scalestudy.claims.model import Direction
from scalestudy.figures import tables
from scalestudy.files import canonical_json
from tests.unit.analysis.fake_results import MACHINE, read_study, write_results

STUDY = """
question: How many?
base:
  model: small_cnn
  data: {{source: digits}}
  train: {{epochs: 15}}
vary:
  strategy: [allreduce, parameter_server]
  ranks: [1, 2]
  batch.per_rank: {batches}
repeats: 2
tables:
  - {{name: rates, values: [throughput_samples_per_s, efficiency]}}
"""
FEW, MANY = 6, 12
"""Batches: twice as many are twice as many runs, configurations and workloads."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the values of a run were written out to compare them, and how many numbers a unit was chosen for."""
    found: Counter[str] = Counter()
    for module in (identity, workload):

        def counted(value: Any, name: str = module.__name__) -> str:
            found[name] += 1
            return canonical_json(value)

        monkeypatch.setattr(module, "canonical_json", counted)
    friendly = tables.friendly

    def unit_for(unit: str, values: Iterable[float]) -> tuple[float, str]:
        values = list(values)
        found["numbers that a unit was chosen for"] += len(values)
        return friendly(unit, values)

    monkeypatch.setattr(tables, "friendly", unit_for)
    return found


def test_summary_and_table_of_twice_as_many_runs_are_twice_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    for batches in (FEW, MANY):
        study = read_study(tmp_path, STUDY.format(batches=list(range(1, batches + 1))), f"of_{batches}")
        write_results(study)
        calls.clear()

        summarise(study, MACHINE)
        tables.as_markdown(tables.table_of(study, MACHINE, study.tables[0]))
        seen.append(Counter(calls))

    few, many = seen
    assert few.keys() == many.keys() and len(few) == 3
    assert {name: many[name] / few[name] for name in few} == dict.fromkeys(few, 2.0)


def test_a_claim_of_twice_as_many_parts_is_twice_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Counter[str]()
    canonical_json = claim_sides.canonical_json

    def counted(value: Any) -> str:
        written["values"] += 1
        return canonical_json(value)

    monkeypatch.setattr(claim_sides, "canonical_json", counted)
    claim = Direction.model_construct(where={}, of={"side": "of"}, against={"side": "against"}, each="batch")
    found = []
    for batches in (FEW, MANY):
        rows = [{"side": side, "batch": batch} for side in ("of", "against") for batch in range(batches)]
        written.clear()
        parts = claim_sides.parts_of(claim, rows)
        assert [(part.value, len(part.of), len(part.against or ())) for part in parts] == [
            (batch, 1, 1) for batch in range(batches)
        ]
        found.append(written["values"])
    assert found[1] == 2 * found[0]


def test_rounds_are_tied_by_the_configurations_that_they_share() -> None:
    """Two chains of rounds, one of which is closed only by its last value."""
    values = [("a", 0, 1.0), ("b", 1, 2.0), ("c", 2, 3.0), ("x", 7, 4.0), ("a", 1, 5.0), ("c", 0, 6.0)]

    assert drift._tied(values) == [
        [("a", 0, 1.0), ("b", 1, 2.0), ("c", 2, 3.0), ("a", 1, 5.0), ("c", 0, 6.0)],
        [("x", 7, 4.0)],
    ]
