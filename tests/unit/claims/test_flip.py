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
    """Three runs with this step."""
    row = {
        "status": "valid", "device": "emulated:p100", "model": "m", "batch.per_rank": 1, "ranks": 1, "loader.workers": 0,
        "exchange_s": 0.0, "data_stall": 0.0, "step_time_s": step_time_s, **more,
    }  # fmt: skip
    return (row,) * 3


def test_an_exchange_of_as_long_as_a_step_is_a_twentieth_of_a_step_nineteen_times_as_long() -> None:
    said = flip_text(CLAIM, ClaimPart(None, side(0.2), side(0.1)))
    assert said == ["With a step of 1.9 s in place of 100 ms the verdict would flip, if all else stayed"]


def test_a_loader_that_is_waited_for_hides_behind_a_slower_accelerator() -> None:
    waits = {"loader.workers": 2, "data_stall": 0.5}
    said = flip_text(CLAIM, ClaimPart(None, side(0.2, **waits), side(0.1, **{"loader.workers": 2})))
    assert said == ["With a step of 191 ms in place of 100 ms the verdict would flip, if all else stayed"]


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
