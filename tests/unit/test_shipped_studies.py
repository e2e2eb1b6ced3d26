"""What the shipped studies hold, at every scale that they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies
from scalestudy.spec.study import Study

ROOT = Path(__file__).resolve().parents[2]
SCALES = ("mini", "node", "paper")


@pytest.fixture(scope="module", params=SCALES)
def shipped(request: pytest.FixtureRequest) -> list[Study]:
    """Every shipped study that has this scale."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        found = find_studies(None, request.param, Machine())
        found.raise_errors()
    assert found.studies
    return found.studies


def test_a_label_says_by_how_much_the_learning_rate_is_scaled(shipped: list[Study]) -> None:
    """Goyal et al. 2017: the factor is the run's global batch over the batch that the rate is meant for."""
    wrong = []
    for study in shipped:
        labels = study.labels.get("optimiser.learning_rate_for_batch", {})
        for run in study.runs:
            meant_for = run.spec.optimiser.learning_rate_for_batch
            said = re.search(r"scaled by (\d+|ranks)", labels.get("null" if meant_for is None else str(meant_for), ""))
            if said and meant_for is not None:
                factor = run.spec.ranks if said[1] == "ranks" else int(said[1])
                if run.spec.global_batch != factor * meant_for:
                    wrong.append(f"{study.name}: {said[0]}, {run.spec.global_batch}/{meant_for}")
    assert sorted(set(wrong)) == []
