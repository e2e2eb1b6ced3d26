"""What was measured in one go, and what ties it to what was measured later."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scalestudy.analysis.periods import days, periods_of, tie


def run(started: str, wall_s: float = 60.0, **more: Any) -> dict[str, Any]:
    return {"started": started, "wall_s": wall_s, **more}


def test_a_gap_of_more_than_twelve_hours_begins_another_period() -> None:
    rows = [
        run("2026-12-03T08:00:00+00:00"),
        run("2026-11-20T08:00:00+00:00"),
        run("2026-11-20T19:59:00+00:00"),
        run(""),
    ]
    assert periods_of(rows) == [2, 1, 1, 0]


def test_a_run_that_takes_a_day_is_followed_in_the_same_period() -> None:
    rows = [run("2026-11-20T08:00:00+00:00", 24 * 3600), run("2026-11-21T09:00:00+00:00", math.nan)]
    assert periods_of(rows) == [1, 1]


def test_days_are_named() -> None:
    assert days([run("2026-11-20T08:00:00+00:00"), run("2026-11-22T08:00:00+00:00")]) == "2026-11-20 to 2026-11-22"
    assert days([run("")]) == "an unknown day"


def test_periods_are_tied_by_what_was_measured_in_both() -> None:
    rows = [
        {"configuration": name, "period": period, "rate": rate}
        for name, period, rate in [("a", 1, 100.0), ("a", 2, 110.0), ("b", 1, 50.0), ("c", 2, 70.0)]
    ]
    found = tie(rows, 1, 2, "rate")
    assert found is not None and found.n == 1
    assert found.mean == pytest.approx(math.log(1.1))
    assert tie(rows[2:], 1, 2, "rate") is None
