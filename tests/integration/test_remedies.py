"""What a run says to do helps: the same run, once that was done, ends another way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.tries import attempt

CASES = [
    # Settings, what is said about them, and what follows it.
    ("optimiser.learning_rate=1000", "lower optimiser.learning_rate", "optimiser.learning_rate=0.05"),
    ("measure.steps=1", "raise measure.steps or train.epochs", "measure.steps=200"),
    ("batch.per_rank=4000", "make the global batch 1437 or smaller", "batch.per_rank=64"),
    ("strategy={name: parameter_server, servers: 5}; model={name: mlp, layers: 1}", "use at most 2 servers", "strategy={name: parameter_server, servers: 2}"),
    ("train.weighted_loss=true", "leave it out", "train.weighted_loss=false"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "words", "change"), CASES)
def test_a_run_ends_another_way_once_its_remedy_is_followed(
    settings: str, words: str, change: str, tmp_path: Path
) -> None:
    # The window is the rest of the training, so that it is long enough on a fast machine too.
    given = ["train.epochs=40", "device=cpu", *settings.split("; ")]
    before, after = attempt(tmp_path / "before", *given), attempt(tmp_path / "after", *given, change)
    assert words in before.stdout, before.stdout
    assert "\nvalid\n" in after.stdout, after.stdout
