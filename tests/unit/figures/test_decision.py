"""What pairs of runs say about a setting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.figures import decision


@pytest.fixture(autouse=True)
def _one_varied_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "varied_columns", lambda study: ["scaled", "ranks"])
    monkeypatch.setattr(decision, "value_text", lambda study, key, value, named: f"{key} {value}")


def rows(plain: list[float], scaled: list[float], ranks: int = 2) -> list[dict[str, Any]]:
    """Runs without and with the setting, repeat by repeat."""
    return [
        {
            "status": "valid",
            "scaled": name,
            "ranks": ranks,
            "repeat": repeat,
            "accuracy": value,
            "training_time_s": value,
        }
        for name, values in (("off", plain), ("on", scaled))
        for repeat, value in enumerate(values)
    ]


def said(data: list[dict[str, Any]], column: str = "accuracy") -> list[str]:
    """The sentences about them."""
    return decision.sentences(SimpleNamespace(), data, "scaled", column)  # type: ignore[arg-type]


def test_a_difference_that_all_pairs_share_decides() -> None:
    [sentence] = said(rows([0.80, 0.70, 0.60], [0.90, 0.80, 0.71]))
    assert (
        sentence
        == "scaled on instead of scaled off: better; Held-out accuracy changes by +0.103 [+0.089 … +0.118], 3 pairs"
    )


def test_what_repeats_disagree_about_is_undecided() -> None:
    [sentence] = said(rows([0.80, 0.80, 0.80], [0.90, 0.70, 0.81]))
    assert "undecided" in sentence


def test_a_longer_time_is_worse() -> None:
    [sentence] = said(rows([10.0, 10.1, 10.2], [12.0, 12.1, 12.2]), "training_time_s")
    assert "worse; Training time changes by +2" in sentence


def test_two_pairs_decide_nothing() -> None:
    assert "2 pairs of runs decide nothing" in said(rows([0.8, 0.8], [0.9, 0.9]))[0]


def test_each_combination_of_the_rest_is_judged_by_itself() -> None:
    both = rows([0.8] * 3, [0.9] * 3) + rows([0.9] * 3, [0.8] * 3, ranks=4)
    first, second = said(both)
    assert first.startswith("ranks 2: ") and "better" in first
    assert second.startswith("ranks 4: ") and "worse" in second


def test_runs_that_are_not_valid_are_no_pair() -> None:
    data = rows([0.8], [0.9])
    data[0]["status"] = "invalid"
    assert said(data) == ["scaled on instead of scaled off: nothing to compare yet"]
