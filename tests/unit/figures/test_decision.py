"""What pairs of runs say about a setting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.figures import decision
from scalestudy.figures.catalogue import TableSpec


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
            "bytes_per_s": value,
        }
        for name, values in (("off", plain), ("on", scaled))
        for repeat, value in enumerate(values)
    ]


def said(data: list[dict[str, Any]], column: str = "accuracy", margin: float | None = None) -> list[str]:
    """The sentences about them."""
    table = TableSpec(name="t", values=(column,), decide="scaled", margin=margin)
    return decision.sentences(SimpleNamespace(), data, table)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "plain", "scaled", "said_of_them"),
    [
        ("accuracy", [0.80, 0.70, 0.60], [0.90, 0.80, 0.71],
         "better; Held-out accuracy changes by +0.100 [0.089, 0.118] (margin 0.01, 3 pairs), p = 0.0013"),
        ("accuracy", [0.80, 0.80, 0.80], [0.90, 0.70, 0.81], "undecided; "),
        ("training_time_s", [10.0, 20.0, 40.0], [12.0, 24.0, 48.1], "slower; Training time changes by +20.0"),
        ("training_time_s", [12.0, 12.1, 12.2], [10.0, 10.1, 10.2], "faster; Training time changes by -16.5"),
        ("training_time_s", [10.0, 10.1, 10.2], [10.1, 10.2, 10.3], "same; Training time changes by +0.99"),
        ("bytes_per_s", [1e9, 2e9, 4e9], [1.2e9, 2.4e9, 4.81e9], "faster; Bandwidth changes by +20.0"),
    ],
)  # fmt: skip
def test_pairs_of_runs_decide_by_their_difference_or_of_times_by_their_ratio(
    column: str, plain: list[float], scaled: list[float], said_of_them: str
) -> None:
    [sentence] = said(rows(plain, scaled), column)
    assert sentence.startswith(f"scaled on instead of scaled off: {said_of_them}")


def test_comparisons_of_one_table_are_corrected_for_their_number() -> None:
    """Alone p is 0.015: one in a hundred tables of this size would hold such a comparison by chance."""
    clear = [0.08, 0.12, 0.10]
    alone = said(rows([0.0] * 3, clear))
    many = said(
        [row for ranks in range(8) for row in rows([0.0] * 3, clear if ranks == 0 else [0.1, -0.1, 0.0], ranks)]
    )
    assert ": better;" in alone[0]
    assert ": undecided;" in many[0] and "corrected for 8 comparisons" in many[0]


def test_each_combination_of_the_rest_is_judged_by_itself() -> None:
    both = rows([0.8] * 3, [0.9] * 3) + rows([0.9] * 3, [0.8] * 3, ranks=4)
    first, second = said(both)
    assert first.startswith("ranks 2: ") and "better" in first
    assert second.startswith("ranks 4: ") and "worse" in second
