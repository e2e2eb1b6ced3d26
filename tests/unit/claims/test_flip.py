"""Where a verdict on emulated steps would flip."""

from __future__ import annotations

from typing import Any

import pytest

from scalestudy.claims.basis import flip_text
from scalestudy.claims.model import Direction
from scalestudy.claims.select import ClaimPart

CLAIM = Direction(
    id="c",
    statement="S.",
    kind="direction",
    column="throughput_samples_per_s",
    against={},
    below=0.95,
    margin_reason="m",
)


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every accelerator takes 0.1 s for a step."""
    monkeypatch.setattr("scalestudy.claims.basis.emulated_step_time", lambda *_: 0.1)


Side = tuple[dict[str, Any], ...]


def side(step_time_s: float, **more: Any) -> Side:
    row = {
        "status": "valid", "device": "emulated:p100", "model": "m", "batch.per_rank": 1, "batch.global": 1, "ranks": 1, "loader.workers": 0,
        "exchange_s": 0.0, "data_stall": 0.0, "step_time_s": step_time_s, **more,
    }  # fmt: skip
    return (row,) * 3


MORE = CLAIM.model_copy(update={"below": None, "above": 1.05})
STALLED = CLAIM.model_copy(update={"column": "data_stall", "below": None, "above": 0.05})
EFFICIENCY = CLAIM.model_copy(update={"column": "efficiency"})
FOUR = {"ranks": 4, "batch.global": 4}


@pytest.mark.parametrize(
    ("claim", "of", "against", "then"),
    [
        # An exchange of as long as a step is a twentieth of a step nineteen times as long.
        (CLAIM, side(0.2), side(0.1), "1.9 s"),
        # A loader hides behind a slower accelerator.
        (CLAIM, side(0.2, **{"loader.workers": 2, "data_stall": 0.5}), side(0.1, **{"loader.workers": 2}), "191 ms"),
        # Four ranks that exchange for 0.2 s train 4/3 times as much as two that do so for 0.1 s; 1.05 times with 10.5 ms.
        (MORE, side(0.3, **FOUR), side(0.2, ranks=2, **{"batch.global": 2}), "10.5 ms"),
        # Of a step of 0.2 s, half waits for data: with 190 ms of computing, a twentieth.
        (STALLED, side(0.2, **{"loader.workers": 1, "data_stall": 0.5}), side(0.2, **{"loader.workers": 1}), "191 ms"),
        # Beside a rank without exchange, four that exchange for 0.1 s reach half its efficiency; 0.95 with 1.9 s.
        (EFFICIENCY, side(0.2, **FOUR), side(0.1), "1.9 s"),
    ],
)
def test_the_nearest_step_that_would_change_the_verdict_is_named(
    claim: Direction, of: Side, against: Side, then: str
) -> None:
    said = flip_text(claim, ClaimPart(None, (of, against)))
    assert said == [f"With a step of {then} in place of 100 ms the verdict would flip, if all else stayed"]


@pytest.mark.parametrize(
    "more",
    [
        {"device": None},
        {"device": "emulated:infinite"},
        {"ranks": 4, "exchange_s": float("nan")},
        {"status": "missing"},
    ],
)
def test_nothing_is_computed_of_a_real_or_free_accelerator_or_an_overlapped_exchange(more: dict[str, Any]) -> None:
    assert flip_text(CLAIM, ClaimPart(None, (side(0.2, **more), side(0.1)))) == []
