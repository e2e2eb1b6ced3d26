"""When runs were measured: periods of measuring, which long gaps separate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from scalestudy.analysis.stats import Interval, interval

LONGEST_GAP = timedelta(hours=12)
"""Between the end of one run and the start of the next, within one period."""

Row = Mapping[str, Any]


def periods_of(rows: Sequence[Row]) -> list[int]:
    """For each run the number of its period, from 1; 0 where it is not known when it was measured.

    `rows` have `started` (ISO 8601) and `wall_s`. Runs that were measured in one go share a period, whichever study
    asked for them; a run measured more than 12 hours after the last one begins another.
    """
    starts = [(datetime.fromisoformat(row["started"]), index) for index, row in enumerate(rows) if row.get("started")]
    found, number, end = [0] * len(rows), 0, None
    for start, index in sorted(starts):
        if end is None or start - end > LONGEST_GAP:
            number += 1
        wall_s = rows[index].get("wall_s")
        known_s = float(wall_s) if wall_s is not None and math.isfinite(wall_s) else 0.0
        end = max(end or start, start + timedelta(seconds=known_s))
        found[index] = number
    return found


def days(rows: Sequence[Row]) -> str:
    """The days on which these runs were measured: `2026-11-20` or `2026-11-20 to 2026-11-22`."""
    known = sorted(str(row["started"])[:10] for row in rows if row.get("started"))
    if not known:
        return "an unknown day"
    return known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def tie(rows: Sequence[Row], first: int, second: int, column: str) -> Interval | None:
    """How much more a column is in period `second` than in `first`: the mean log-ratio over configurations measured in both.

    One value per configuration: the ratio of its means. None where no configuration was measured in both.
    """
    ratios = []
    values: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        values.setdefault(row["configuration"], {}).setdefault(row["period"], []).append(row[column])
    for of_period in values.values():
        means = [interval(of_period.get(number, []), log=True) for number in (first, second)]
        if means[0] is not None and means[1] is not None and means[0].mean > 0 and means[1].mean > 0:
            ratios.append(math.log(means[1].mean / means[0].mean))
    return interval(ratios)
