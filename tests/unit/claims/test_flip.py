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


def side(step_time_s: float, **more: Any) -> tuple[dict[str, Any], ...]:
    row = {
        "status": "valid", "device": "emulated:p100", "model": "m", "batch.per_rank": 1, "batch.global": 1, "ranks": 1, "loader.workers": 0,
        "exchange_s": 0.0, "data_stall": 0.0, "step_time_s": step_time_s, **more,
    }  # fmt: skip
    return (row,) * 3


@pytest.mark.parametrize(
    ("more", "then"),
    [
        ({}, "1.9 s"),  # an exchange of as long as a step is a twentieth of a step nineteen times as long
        ({"loader.workers": 2, "data_stall": 0.5}, "191 ms"),  # a loader hides behind a slower accelerator
    ],
)
def test_the_nearest_step_that_would_change_the_verdict_is_named(more: dict[str, Any], then: str) -> None:
    said = flip_text(CLAIM, ClaimPart(None, side(0.2, **more), side(0.1, **{**more, "data_stall": 0.0})))
    assert said == [f"With a step of {then} in place of 100 ms the verdict would flip, if all else stayed"]


def test_of_throughputs_the_samples_of_a_step_count() -> None:
    """Four ranks that exchange for 0.2 s train 4/3 times as much as two that do so for 0.1 s: with steps of 10.5 ms, 1.05 times."""
    more = CLAIM.model_copy(update={"below": None, "above": 1.05})
    four, two = side(0.3, ranks=4, **{"batch.global": 4}), side(0.2, ranks=2, **{"batch.global": 2})
    said = flip_text(more, ClaimPart(None, four, two))
    assert said == ["With a step of 10.5 ms in place of 100 ms the verdict would flip, if all else stayed"]


def test_a_stall_ends_where_the_accelerator_is_as_slow_as_its_data() -> None:
    """Of a step of 0.2 s, half waits for data: with 190 ms of computing, a twentieth."""
    stalled = CLAIM.model_copy(update={"column": "data_stall", "below": None, "above": 0.05})
    of, against = (side(0.2, **{"data_stall": stall, "loader.workers": 1}) for stall in (0.5, 0.0))
    said = flip_text(stalled, ClaimPart(None, of, against))
    assert said == ["With a step of 191 ms in place of 100 ms the verdict would flip, if all else stayed"]


def test_an_efficiency_is_the_throughput_of_a_rank() -> None:
    """Beside a rank without exchange, four that exchange for 0.1 s reach half its efficiency; 0.95 with steps of 1.9 s."""
    lower = CLAIM.model_copy(update={"column": "efficiency"})
    said = flip_text(lower, ClaimPart(None, side(0.2, ranks=4, **{"batch.global": 4}), side(0.1)))
    assert said == ["With a step of 1.9 s in place of 100 ms the verdict would flip, if all else stayed"]


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
    assert flip_text(CLAIM, ClaimPart(None, side(0.2, **more), side(0.1))) == []
